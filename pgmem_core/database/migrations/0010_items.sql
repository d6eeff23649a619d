-- Items: keyed JSON documents in namespaces, as LangGraph's stores keep them. A memory of its own: no item becomes a
-- turn, a fact or a part of a context.

CREATE TABLE items (
    id          uuid NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL DEFAULT 'infinity',  -- no index mentions it: a read that extends it stays HOT
    term_total  integer NOT NULL DEFAULT 0,
    tenant_id   text NOT NULL,
    namespace   text COLLATE "C" NOT NULL,  -- '.users.u_1.': each label ended by a dot, so a prefix of whole labels is a
                                            -- prefix of text, and one range of the index: from '.users.' to '.users/'
    key         text COLLATE "C" NOT NULL,
    value       jsonb NOT NULL,
    ttl_minutes double precision,
    terms       bigint[] NOT NULL DEFAULT '{}',  -- the item's postings by key, for deletion
    PRIMARY KEY (tenant_id, namespace, key),
    CHECK ((ttl_minutes IS NULL) = (expires_at = 'infinity'))
) WITH (fillfactor = 85);
CREATE UNIQUE INDEX items_by_id ON items (tenant_id, id);
CREATE INDEX items_with_ttl ON items (tenant_id, id) WHERE ttl_minutes IS NOT NULL;

CREATE TABLE item_vectors (                 -- apart from the item, so that a new expiry does not touch the graph index
    item_id   uuid NOT NULL,
    place     smallint NOT NULL,            -- one vector an indexed field
    tenant_id text NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    model     text NOT NULL,
    embedding vector NOT NULL,
    content   text NOT NULL,                -- what was embedded, for the day another model is to embed it
    PRIMARY KEY (tenant_id, namespace, item_id, place)
);
ALTER TABLE item_vectors ALTER COLUMN embedding SET STORAGE MAIN;

CREATE TABLE item_postings (
    tenant_id text NOT NULL,
    term      bigint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    item_id   uuid NOT NULL,
    tf        smallint NOT NULL,
    len       smallint NOT NULL,
    PRIMARY KEY (tenant_id, term, namespace, item_id) INCLUDE (tf, len)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.02);

CREATE TABLE item_stats (                   -- how much lies under a prefix; counted now and then, after a put
    tenant_id  text NOT NULL,
    prefix     text COLLATE "C" NOT NULL,
    item_count bigint NOT NULL,
    term_total bigint NOT NULL,
    counted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, prefix)
);

CREATE FUNCTION put_items(
    p_tenant text, p_namespaces text[], p_keys text[], p_ids uuid[],
    p_values jsonb[],                       -- NULL: delete
    p_ttls double precision[],
    p_terms bigint[], p_counts smallint[], p_term_ends integer[], p_totals integer[],  -- item i's terms end at p_term_ends[i]
    p_model text, p_vectors vector[], p_texts text[], p_vector_ends integer[]
) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_id uuid;  v_old bigint[];  v_new bigint[];  v_texts text[];  v_dead boolean;  v_now timestamptz;  v_until timestamptz;
    v_words boolean;  v_vectors boolean;  -- to be written anew
    v_term integer := 1;  v_vector integer := 1;
BEGIN
    FOR i IN 1 .. cardinality(p_keys) LOOP
        v_new := p_terms[v_term:p_term_ends[i]];
        v_texts := p_texts[v_vector:p_vector_ends[i]];
        v_words := true;
        v_vectors := true;
        LOOP
            SELECT o.id, o.terms, o.expires_at <= clock_timestamp() INTO v_id, v_old, v_dead FROM items o
            WHERE o.tenant_id = p_tenant AND o.namespace = p_namespaces[i] AND o.key = p_keys[i] FOR UPDATE;
            v_now := clock_timestamp();
            v_until := coalesce(v_now + p_ttls[i] * interval '1 minute', 'infinity');
            IF v_id IS NOT NULL THEN
                -- What is found as before stays: a new value beside the same text costs no entry in the graph index.
                v_vectors := p_values[i] IS NULL OR v_texts IS DISTINCT FROM ARRAY(
                    SELECT CASE WHEN v.model = p_model THEN v.content END FROM item_vectors v
                    WHERE v.tenant_id = p_tenant AND v.namespace = p_namespaces[i] AND v.item_id = v_id ORDER BY v.place);
                v_words := v_vectors OR v_old <> v_new;
                IF v_words THEN
                    DELETE FROM item_postings p WHERE p.tenant_id = p_tenant AND p.term = ANY (v_old)
                        AND p.namespace = p_namespaces[i] AND p.item_id = v_id;
                END IF;
                IF v_vectors THEN
                    DELETE FROM item_vectors v
                    WHERE v.tenant_id = p_tenant AND v.namespace = p_namespaces[i] AND v.item_id = v_id;
                END IF;
                IF p_values[i] IS NULL THEN
                    DELETE FROM items o
                    WHERE o.tenant_id = p_tenant AND o.namespace = p_namespaces[i] AND o.key = p_keys[i];
                ELSE
                    UPDATE items o SET
                        value = p_values[i], updated_at = v_now, ttl_minutes = p_ttls[i], expires_at = v_until,
                        created_at = CASE WHEN v_dead THEN v_now ELSE o.created_at END,  -- what had expired is not revived
                        terms = v_new, term_total = p_totals[i]
                    WHERE o.tenant_id = p_tenant AND o.namespace = p_namespaces[i] AND o.key = p_keys[i];
                END IF;
                EXIT;
            END IF;
            EXIT WHEN p_values[i] IS NULL;
            INSERT INTO items (tenant_id, namespace, key, id, value, created_at, updated_at, ttl_minutes, expires_at,
                               terms, term_total)
            VALUES (p_tenant, p_namespaces[i], p_keys[i], p_ids[i], p_values[i], v_now, v_now, p_ttls[i], v_until,
                    v_new, p_totals[i])
            ON CONFLICT (tenant_id, namespace, key) DO NOTHING RETURNING id INTO v_id;
            EXIT WHEN v_id IS NOT NULL;     -- else somebody else was faster: theirs is there now
        END LOOP;
        IF p_values[i] IS NOT NULL AND v_words THEN
            INSERT INTO item_postings (tenant_id, term, namespace, item_id, tf, len)
            SELECT p_tenant, u.term, p_namespaces[i], v_id, u.tf, least(p_totals[i], 32767)
            FROM unnest(v_new, p_counts[v_term:p_term_ends[i]]) AS u (term, tf);
        END IF;
        IF p_values[i] IS NOT NULL AND v_vectors THEN
            INSERT INTO item_vectors (tenant_id, namespace, item_id, place, model, embedding, content)
            SELECT p_tenant, p_namespaces[i], v_id, u.place, p_model, u.embedding, u.content
            FROM unnest(p_vectors[v_vector:p_vector_ends[i]], v_texts) WITH ORDINALITY AS u (embedding, content, place);
        END IF;
        v_term := p_term_ends[i] + 1;
        v_vector := p_vector_ends[i] + 1;
    END LOOP;
END $$;

-- Deletes what has expired, at most p_limit items, passing over those that somebody is writing.
CREATE FUNCTION sweep_items(p_tenant text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    r record;  v_count bigint := 0;
BEGIN
    FOR r IN
        DELETE FROM items i USING (
            SELECT x.id FROM items x
            WHERE x.tenant_id = p_tenant AND x.ttl_minutes IS NOT NULL AND x.expires_at <= clock_timestamp()
            LIMIT p_limit FOR UPDATE SKIP LOCKED) AS due
        WHERE i.tenant_id = p_tenant AND i.id = due.id
        RETURNING i.id, i.namespace, i.terms
    LOOP
        DELETE FROM item_postings p
        WHERE p.tenant_id = p_tenant AND p.term = ANY (r.terms) AND p.namespace = r.namespace AND p.item_id = r.id;
        DELETE FROM item_vectors v WHERE v.tenant_id = p_tenant AND v.namespace = r.namespace AND v.item_id = r.id;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

CREATE FUNCTION refresh_item_stats(p_tenant text, p_prefixes text[], p_added bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    v_prefix text;
BEGIN
    FOREACH v_prefix IN ARRAY p_prefixes LOOP
        -- As for scope_stats: at most once in item_count milliseconds, or when a fifth was added at once.
        CONTINUE WHEN EXISTS (
            SELECT FROM item_stats s WHERE s.tenant_id = p_tenant AND s.prefix = v_prefix
                AND s.item_count > 1000 AND p_added * 5 < s.item_count
                AND s.counted_at > clock_timestamp() - s.item_count * interval '1 millisecond');
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(
            hashtextextended('pgmem item stats ' || p_tenant || chr(31) || v_prefix, 0));
        INSERT INTO item_stats (tenant_id, prefix, item_count, term_total)
        SELECT p_tenant, v_prefix, count(*), coalesce(sum(i.term_total), 0) FROM items i
        WHERE i.tenant_id = p_tenant AND i.namespace >= v_prefix COLLATE "C" AND i.namespace < left(v_prefix, -1) || '/'
        ON CONFLICT (tenant_id, prefix) DO UPDATE
        SET item_count = excluded.item_count, term_total = excluded.term_total, counted_at = clock_timestamp();
    END LOOP;
END $$;

-- The HNSW arm, as for records: enable_sort off leaves the planner the index as the one way to the order.
CREATE FUNCTION nearest_items_by_index(p_statement text, p_tenant text, p_prefix text, p_below text, p_vector vector,
    p_filter jsonpath, p_variables jsonb, p_limit integer
) RETURNS TABLE (id uuid, nearness double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET hnsw.ef_search = 40 SET hnsw.iterative_scan = relaxed_order
SET enable_sort = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    PERFORM set_config('hnsw.ef_search', least(1000, greatest(40, 2 * p_limit))::text, true);
    RETURN QUERY EXECUTE p_statement USING p_tenant, p_prefix, p_below, p_vector, p_filter, p_variables, p_limit;
END $$;

-- The p_limit live items nearest to a vector (each by its best vector), best first; always so many where they exist.
--   a filter that lets 2,000 pass or fewer    exact, over these
--   up to 5,000 items (20,000 with a filter)  exact, by the primary key
--   else                                      by HNSW, and exact where it came back short
CREATE FUNCTION nearest_items(p_tenant text, p_prefix text, p_below text, p_vector vector, p_model text,
    p_dimensions integer, p_metric text, p_exact boolean, p_filter jsonpath, p_variables jsonb, p_count bigint,
    p_limit integer
) RETURNS TABLE (id uuid, nearness double precision)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c_few CONSTANT integer := 2000;
    v_wanted CONSTANT integer := 2 * p_limit + 10;  -- some have more than one vector, some may have expired
    v_type     text;
    -- + 0 keeps the order of the exact arms out of the vector index.
    v_near     text := CASE p_metric WHEN 'cosine' THEN '(1 - (v.embedding <=> $4))'
                                     WHEN 'l2' THEN '(-(v.embedding <-> $4))' ELSE '(-(v.embedding <#> $4))' END;
    v_vectors  text := format(' WHERE v.tenant_id = $1 AND v.namespace >= $2 AND v.namespace < $3 AND v.model = %L', p_model);
    v_live     text := ' i.expires_at > statement_timestamp()'
        || CASE WHEN p_filter IS NOT NULL THEN ' AND jsonb_path_match(i.value, $5, $6, true)' ELSE '' END;
    v_names    text[];
    v_ids      uuid[];
    v_nearness double precision[];
    v_raw      integer;
BEGIN
    IF p_vector IS NULL OR p_limit < 1 THEN
        RETURN;
    END IF;
    IF p_filter IS NOT NULL THEN
        EXECUTE 'SELECT array_agg(f.id), array_agg(f.namespace) FROM (SELECT i.id, i.namespace FROM items i
                 WHERE i.tenant_id = $1 AND i.namespace >= $2 AND i.namespace < $3 AND' || v_live || ' LIMIT $7) f'
        INTO v_ids, v_names
        USING p_tenant, p_prefix, p_below, p_vector, p_filter, p_variables, c_few + 1;
        IF coalesce(cardinality(v_ids), 0) <= c_few THEN
            RETURN QUERY EXECUTE 'SELECT v.item_id, max(' || v_near || ') AS best
                FROM unnest($2::uuid[], $3::text[]) AS u (id, namespace)
                JOIN item_vectors v ON v.tenant_id = $1 AND v.namespace = u.namespace AND v.item_id = u.id'
                || format(' AND v.model = %L', p_model) || ' GROUP BY v.item_id ORDER BY best DESC, v.item_id LIMIT $5'
            USING p_tenant, v_ids, v_names, p_vector, p_limit;
            RETURN;
        END IF;
    END IF;
    IF NOT p_exact AND p_metric = 'cosine' AND p_dimensions <= 4000
       AND p_count > (CASE WHEN p_filter IS NULL THEN 5000 ELSE 20000 END) THEN
        v_type := format(CASE WHEN p_dimensions <= 2000 THEN 'vector(%s)' ELSE 'halfvec(%s)' END, p_dimensions);
        SELECT array_agg(g.id ORDER BY g.best DESC), array_agg(g.best ORDER BY g.best DESC) INTO v_ids, v_nearness
        FROM (SELECT n.id, max(n.nearness) AS best FROM nearest_items_by_index(
                  format('SELECT v.item_id, 1 - ((v.embedding::%1$s) <=> $4::%1$s) FROM item_vectors v', v_type)
                      || ' JOIN items i ON i.tenant_id = $1 AND i.id = v.item_id AND' || v_live || v_vectors
                      || format(' ORDER BY (v.embedding::%1$s) <=> $4::%1$s LIMIT $7', v_type),
                  p_tenant, p_prefix, p_below, p_vector, p_filter, p_variables, p_limit + p_limit / 4 + 2) n
              GROUP BY n.id) g;
        IF cardinality(v_ids) >= p_limit THEN
            RETURN QUERY SELECT u.id, u.nearness FROM unnest(v_ids, v_nearness) AS u (id, nearness) LIMIT p_limit;
            RETURN;
        END IF;
    END IF;
    IF p_filter IS NULL THEN  -- the vectors alone, then a look at the best: a third of the time of the whole join
        IF p_metric = 'cosine' THEN  -- the same, planned once: 0.2 ms less
            SELECT count(*), array_agg(c.item_id), array_agg(c.near) INTO v_raw, v_ids, v_nearness
            FROM (SELECT v.item_id, 1 - (v.embedding <=> p_vector) AS near FROM item_vectors v
                  WHERE v.tenant_id = p_tenant AND v.namespace >= p_prefix AND v.namespace < p_below AND v.model = p_model
                  ORDER BY (1 - (v.embedding <=> p_vector)) + 0 DESC LIMIT v_wanted) c;
        ELSE
            EXECUTE 'SELECT count(*), array_agg(c.item_id), array_agg(c.near) FROM (SELECT v.item_id, ' || v_near
                || ' AS near FROM item_vectors v' || v_vectors || ' ORDER BY ' || v_near || ' + 0 DESC LIMIT $5) c'
            INTO v_raw, v_ids, v_nearness USING p_tenant, p_prefix, p_below, p_vector, v_wanted;
        END IF;
        SELECT array_agg(g.id ORDER BY g.best DESC), array_agg(g.best ORDER BY g.best DESC) INTO v_ids, v_nearness
        FROM (SELECT u.id, max(u.nearness) AS best FROM unnest(v_ids, v_nearness) AS u (id, nearness)
              JOIN items i ON i.tenant_id = p_tenant AND i.id = u.id AND i.expires_at > statement_timestamp()
              GROUP BY u.id) g;
        IF v_raw < v_wanted OR cardinality(v_ids) >= p_limit THEN
            RETURN QUERY SELECT u.id, u.nearness FROM unnest(v_ids, v_nearness) AS u (id, nearness) LIMIT p_limit;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY EXECUTE 'SELECT v.item_id, max(' || v_near || ') AS best FROM item_vectors v
        JOIN items i ON i.tenant_id = $1 AND i.id = v.item_id AND' || v_live || v_vectors
        || ' GROUP BY v.item_id ORDER BY best DESC, v.item_id LIMIT $7'
    USING p_tenant, p_prefix, p_below, p_vector, p_filter, p_variables, p_limit;
END $$;

-- Search. Hybrid: BM25 over the words and nearness over the vectors, mixed 0.65 to 0.35 as in recall; score 0..1.
-- Otherwise by nearness alone, which is the score. No floor: what there is, ranked.
--
-- Words are read from the rarest on, until 500 postings were read; of the commoner ones only the candidates'
-- are looked up. In a namespace of 40,000 that halves the time, and the best candidates share the rare words.
CREATE FUNCTION search_items(
    p_tenant text, p_prefix text, p_below text, p_hybrid boolean, p_terms bigint[],
    p_vector vector, p_model text, p_dimensions integer, p_metric text, p_exact boolean,
    p_filter jsonpath, p_variables jsonb, p_limit integer, p_offset integer
) RETURNS TABLE (namespace text, key text, value jsonb, created_at timestamptz, updated_at timestamptz, id uuid,
                 expiring boolean, score double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    c_pool     CONSTANT integer := 20;       -- the best of each arm, at least
    c_budget   CONSTANT integer := 500;      -- postings
    v_pool     integer := p_limit + p_offset;
    v_count    double precision;  v_length double precision;
    v_terms    bigint[];  v_idfs double precision[];  v_read integer;
    d_ids      uuid[];  d_near double precision[];
    l_ids      uuid[];  l_scores double precision[];
    v_least    double precision;  v_most double precision;  v_best double precision;
BEGIN
    SELECT s.item_count, s.term_total::double precision / greatest(s.item_count, 1) INTO v_count, v_length
    FROM item_stats s WHERE s.tenant_id = p_tenant AND s.prefix = p_prefix;
    IF v_count IS NULL THEN
        SELECT count(*), avg(c.term_total) INTO v_count, v_length FROM (
            SELECT i.term_total FROM items i
            WHERE i.tenant_id = p_tenant AND i.namespace >= p_prefix AND i.namespace < p_below LIMIT 5001) c;
    END IF;
    IF p_hybrid THEN
        v_pool := greatest(2 * v_pool, c_pool);
    END IF;

    SELECT array_agg(n.id), array_agg(n.nearness) INTO d_ids, d_near
    FROM nearest_items(p_tenant, p_prefix, p_below, p_vector, p_model, p_dimensions, p_metric, p_exact, p_filter,
                       p_variables, v_count::bigint, v_pool) n;

    IF NOT p_hybrid THEN
        RETURN QUERY
        SELECT i.namespace, i.key, i.value, i.created_at, i.updated_at, i.id, i.ttl_minutes IS NOT NULL, b.nearness
        FROM (SELECT u.id, u.nearness, u.place FROM unnest(d_ids, d_near) WITH ORDINALITY AS u (id, nearness, place)
              ORDER BY u.place LIMIT p_limit OFFSET p_offset) b
        JOIN items i ON i.tenant_id = p_tenant AND i.id = b.id ORDER BY b.place;
        RETURN;
    END IF;

    IF cardinality(p_terms) > 0 THEN
        SELECT array_agg(c.term ORDER BY c.df, c.term),
               array_agg(ln(1 + (greatest(v_count, c.df) - c.df + 0.5::float8) / (c.df + 0.5::float8))
                         ORDER BY c.df, c.term),
               count(*) FILTER (WHERE c.before < c_budget AND NOT c.many)
        INTO v_terms, v_idfs, v_read
        FROM (SELECT t.term, x.many, x.df, sum(x.df) OVER (ORDER BY x.df, t.term) - x.df AS before
              FROM unnest(p_terms) AS t (term)
              CROSS JOIN LATERAL (
                  SELECT count(*) FROM (
                      SELECT FROM item_postings p WHERE p.tenant_id = p_tenant AND p.term = t.term
                          AND p.namespace >= p_prefix AND p.namespace < p_below LIMIT c_budget + 1) y
              ) AS d (df)
              CROSS JOIN LATERAL (  -- counted no further: taken to stand in a twentieth
                  SELECT d.df > c_budget, CASE WHEN d.df > c_budget THEN greatest(d.df, v_count / 20) ELSE d.df END
              ) AS x (many, df)
              WHERE d.df > 0) c;

        WITH hit AS MATERIALIZED (
            SELECT p.item_id, sum(q.idf * p.tf * 1.9::float8
                       / (p.tf + 0.9::float8 * (0.6::float8 + 0.4::float8 * p.len / greatest(v_length, 1)))) AS bm25
            FROM unnest(v_terms[:v_read], v_idfs[:v_read]) AS q (term, idf)
            JOIN item_postings p ON p.tenant_id = p_tenant AND p.term = q.term
                 AND p.namespace >= p_prefix AND p.namespace < p_below
            GROUP BY p.item_id
        ), ranked AS MATERIALIZED (  -- not without end: what a filter lets pass further down, the vectors bring
            SELECT h.item_id, h.bm25 FROM hit h ORDER BY h.bm25 DESC, h.item_id
            LIMIT CASE WHEN p_filter IS NULL THEN 2 ELSE 20 END * v_pool
        ), kept AS (
            SELECT k.item_id, k.bm25 FROM ranked k
            CROSS JOIN LATERAL (
                SELECT FROM items i WHERE i.tenant_id = p_tenant AND i.id = k.item_id
                    AND i.expires_at > statement_timestamp()
                    AND (p_filter IS NULL OR jsonb_path_match(i.value, p_filter, p_variables, true)) OFFSET 0
            ) AS live
            LIMIT v_pool
        ), scored AS (
            SELECT * FROM kept
            UNION
            SELECT h.item_id, h.bm25 FROM hit h WHERE h.item_id = ANY (d_ids)
        )
        SELECT array_agg(k.item_id), array_agg(k.bm25) INTO l_ids, l_scores FROM scored k;
    END IF;

    IF v_read < cardinality(v_terms) THEN
        SELECT array_agg(c.id), array_agg(c.bm25) INTO l_ids, l_scores FROM (
            SELECT u.id, max(u.bm25) + coalesce(sum(q.idf * p.tf * 1.9::float8
                       / (p.tf + 0.9::float8 * (0.6::float8 + 0.4::float8 * p.len / greatest(v_length, 1)))), 0) AS bm25
            FROM (SELECT a.id, max(a.bm25) AS bm25
                  FROM (SELECT l.id, l.bm25 FROM unnest(l_ids, l_scores) AS l (id, bm25)
                        UNION ALL SELECT d.id, 0 FROM unnest(d_ids) AS d (id)) a GROUP BY a.id) u
            JOIN items i ON i.tenant_id = p_tenant AND i.id = u.id
            CROSS JOIN unnest(v_terms[v_read + 1:], v_idfs[v_read + 1:]) AS q (term, idf)
            LEFT JOIN item_postings p ON p.tenant_id = p_tenant AND p.term = q.term AND p.namespace = i.namespace
                 AND p.item_id = u.id
            GROUP BY u.id) c;
    END IF;

    -- Scaled by the best 20 however deep the page, so that pages agree about an item's score.
    v_best := greatest((SELECT max(u.s) FROM unnest(l_scores) AS u (s)), 1e-9);
    v_most := d_near[1];
    v_least := d_near[least(c_pool, cardinality(d_near))];

    RETURN QUERY
    WITH found AS (
        SELECT u.id, max(u.bm25) AS bm25, max(u.nearness) AS nearness
        FROM (SELECT l.id, l.bm25, NULL::float8 AS nearness FROM unnest(l_ids, l_scores) AS l (id, bm25)
              UNION ALL
              SELECT d.id, NULL, d.nearness FROM unnest(d_ids, d_near) AS d (id, nearness)) u
        GROUP BY u.id
    ), near AS (
        SELECT f.id, coalesce(f.bm25, 0) / v_best AS lexical,
               coalesce(f.nearness, (
                   SELECT max(CASE p_metric WHEN 'cosine' THEN 1 - (v.embedding <=> p_vector)
                                            WHEN 'l2' THEN -(v.embedding <-> p_vector)
                                            ELSE -(v.embedding <#> p_vector) END)
                   FROM items o JOIN item_vectors v
                     ON v.tenant_id = p_tenant AND v.namespace = o.namespace AND v.item_id = o.id AND v.model = p_model
                   WHERE o.tenant_id = p_tenant AND o.id = f.id)) AS nearness
        FROM found f
    ), best AS (
        SELECT near.id,
               0.65::float8 * near.lexical + 0.35::float8 * CASE
                   WHEN near.nearness IS NULL THEN near.lexical    -- never embedded: judged by its words
                   WHEN v_most = v_least THEN CASE WHEN near.nearness >= v_most THEN 1 ELSE 0 END
                   ELSE greatest(0, (near.nearness - v_least) / (v_most - v_least)) END AS score, near.nearness
        FROM near ORDER BY score DESC, near.nearness DESC NULLS LAST, near.id LIMIT p_limit OFFSET p_offset
    )
    SELECT i.namespace, i.key, i.value, i.created_at, i.updated_at, i.id, i.ttl_minutes IS NOT NULL, b.score
    FROM best b JOIN items i ON i.tenant_id = p_tenant AND i.id = b.id
    ORDER BY b.score DESC, b.nearness DESC NULLS LAST, b.id;
END $$;
