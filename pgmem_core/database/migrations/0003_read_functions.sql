-- The reads of a turn. plpgsql, because its statements are planned with the values at hand: generic plans of the
-- same statements took 18 ms instead of 1.7 where one tenant is large among many small.

-- Superseded facts keep their words, for the past; the recall of today asks how many there are.
CREATE INDEX records_invalid ON records (tenant_id, user_id) WHERE invalidated_at IS NOT NULL;

-- The HNSW arm. enable_sort off leaves the planner one way to the order, the index; a scope's btree and a sort
-- would win its estimate too early. Relaxed order, because the caller sorts anyway: 2.8 ms against 4.0 strict for a
-- tenth of 100,000 records at the same recall.
CREATE FUNCTION nearest_by_index(p_statement text, p_tenant text, p_user text, p_vector vector, p_kinds text[],
    p_session text, p_agent text, p_after timestamptz, p_before timestamptz, p_filter jsonpath, p_variables jsonb,
    p_skip_session text, p_skip_offset bigint, p_limit integer
) RETURNS TABLE (id uuid, cosine double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET hnsw.ef_search = 120 SET hnsw.iterative_scan = relaxed_order
SET enable_sort = off SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- Four times what is asked for, at least 120: recall 0.99 of ten from a tenth of 100,000 records. The function's
    -- own SET brings the old value back when it ends.
    PERFORM set_config('hnsw.ef_search', least(1000, greatest(120, 4 * p_limit))::text, true);
    RETURN QUERY EXECUTE p_statement USING p_tenant, p_user, p_vector, p_kinds, p_session, p_agent, p_after,
        p_before, p_filter, p_variables, p_skip_session, p_skip_offset, p_limit;
END $$;

-- The sketch arm: the whole scope by the signs of its vectors in one index-only scan (0.1 µs a memory), then the best
-- of those by their vectors. 10,000 of 100,000: about 3 ms at a recall of 0.99, whether or not a user's memories lie
-- together; the graph index takes 2 to 8 ms for less, because nine of ten nodes it visits are others'.
CREATE FUNCTION nearest_by_sketch(p_statement text, p_tenant text, p_user text, p_vector vector,
    p_skip_session text, p_skip_offset bigint, p_limit integer, p_pool integer
) RETURNS TABLE (id uuid, cosine double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY EXECUTE p_statement
    USING p_tenant, p_user, p_vector, p_skip_session, p_skip_offset, p_limit, p_pool, binary_quantize(p_vector);
END $$;

-- Nearest records of a scope, best first: always p_limit of them where so many exist.
--   up to 5,000 records (20,000 with a filter)   exact, by the scope's btree
--   up to 60,000 of one user, no filter          by sketch, unless the user owns a quarter of the table
--   else                                         by HNSW, and exact again where it came back short
--   as it was then                               exact: the indexes know what is valid now
CREATE FUNCTION nearest(p_tenant text, p_user text, p_vector vector, p_model text, p_dimensions integer,
    p_kinds text[], p_session text, p_agent text, p_after timestamptz, p_before timestamptz, p_filter jsonpath,
    p_variables jsonb, p_skip_session text, p_skip_offset bigint, p_limit integer,
    p_known_at timestamptz DEFAULT NULL  -- what was stored, and not invalidated, by then
) RETURNS TABLE (id uuid, cosine double precision)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    v_count   bigint;
    v_type    text;
    v_from    text;
    v_plain   boolean := p_kinds IS NULL AND p_session IS NULL AND p_agent IS NULL AND p_after IS NULL
                         AND p_before IS NULL AND p_filter IS NULL AND p_known_at IS NULL;
    v_ids     uuid[];
    v_cosines double precision[];
    v_rows    double precision;
BEGIN
    IF p_vector IS NULL OR p_limit < 1 THEN
        RETURN;
    END IF;
    SELECT s.record_count INTO v_count FROM scope_stats s
    WHERE s.tenant_id = p_tenant AND s.level = CASE WHEN p_user IS NULL THEN 'tenant' ELSE 'user' END
      AND s.user_id = coalesce(p_user, '');
    IF v_count IS NULL THEN  -- not counted yet: look no further than the guard needs
        SELECT count(*) INTO v_count FROM (
            SELECT FROM records r WHERE r.tenant_id = p_tenant AND (p_user IS NULL OR r.user_id = p_user) LIMIT 5001) c;
    END IF;

    v_from := format(' FROM records r WHERE r.tenant_id = $1 AND r.model = %L', p_model)
        || CASE WHEN p_known_at IS NULL THEN ' AND r.invalidated_at IS NULL'
                ELSE ' AND r.recorded_at <= $14 AND (r.invalidated_at IS NULL OR r.invalidated_at > $14)' END
        || CASE WHEN p_user IS NOT NULL THEN ' AND r.user_id = $2' ELSE '' END
        || CASE WHEN p_kinds IS NOT NULL THEN ' AND r.kind = ANY ($4)' ELSE '' END
        || CASE WHEN p_session IS NOT NULL THEN ' AND r.session_id = $5' ELSE '' END
        || CASE WHEN p_agent IS NOT NULL THEN ' AND r.agent_id = $6' ELSE '' END
        || CASE WHEN p_after IS NOT NULL THEN ' AND r.created_at >= $7' ELSE '' END
        || CASE WHEN p_before IS NOT NULL THEN ' AND r.created_at < $8' ELSE '' END
        || CASE WHEN p_filter IS NOT NULL THEN ' AND jsonb_path_match(r.metadata, $9, $10, true)' ELSE '' END
        || CASE WHEN p_skip_session IS NOT NULL
                THEN ' AND NOT (r.session_id = $11 AND r.seq IS NOT NULL AND r.token_offset >= $12)' ELSE '' END;

    IF v_plain AND p_user IS NOT NULL AND v_count > 5000 AND v_count <= 60000 THEN
        SELECT c.reltuples INTO v_rows FROM pg_class c WHERE c.oid = 'records'::regclass;
        IF v_count * 4 < v_rows THEN
            RETURN QUERY SELECT * FROM nearest_by_sketch(
                format('SELECT r.id, 1 - (r.embedding <=> $3) FROM (
                            SELECT s.id FROM records s
                            WHERE s.tenant_id = $1 AND s.user_id = $2 AND s.model = %L AND s.embedding IS NOT NULL
                              AND s.invalidated_at IS NULL
                            ORDER BY s.sketch <~> $8 LIMIT $7) c
                        JOIN records r ON r.tenant_id = $1 AND r.id = c.id', p_model)
                    || CASE WHEN p_skip_session IS NOT NULL
                            THEN ' WHERE NOT (r.session_id = $4 AND r.seq IS NOT NULL AND r.token_offset >= $5)'
                            ELSE '' END
                    || ' ORDER BY (r.embedding <=> $3) + 0 LIMIT $6',
                p_tenant, p_user, p_vector, p_skip_session, p_skip_offset, p_limit, 
                -- The nearest few are wanted as they are (500: recall 0.995 of ten); fifty to be ranked again need less.
                (CASE WHEN p_limit <= 20 THEN 500 ELSE greatest(300, 6 * p_limit) END)) n;
            RETURN;
        END IF;
    END IF;
    IF p_known_at IS NULL AND p_dimensions <= 4000 AND v_count > (CASE WHEN v_plain THEN 5000 ELSE 20000 END) THEN
        v_type := format(CASE WHEN p_dimensions <= 2000 THEN 'vector(%s)' ELSE 'halfvec(%s)' END, p_dimensions);
        SELECT array_agg(n.id ORDER BY n.cosine DESC), array_agg(n.cosine ORDER BY n.cosine DESC)
        INTO v_ids, v_cosines
        FROM nearest_by_index(
            format('SELECT r.id, 1 - ((r.embedding::%s) <=> $3::%s)', v_type, v_type) || v_from
                || format(' ORDER BY (r.embedding::%s) <=> $3::%s LIMIT $13', v_type, v_type),
            p_tenant, p_user, p_vector, p_kinds, p_session, p_agent, p_after, p_before, p_filter, p_variables,
            p_skip_session, p_skip_offset, p_limit) n;
        IF cardinality(v_ids) = p_limit THEN
            RETURN QUERY SELECT * FROM unnest(v_ids, v_cosines);
            RETURN;
        END IF;
    END IF;
    -- + 0 keeps the order out of the vector index: this arm is exact.
    RETURN QUERY EXECUTE 'SELECT r.id, 1 - (r.embedding <=> $3)' || v_from || ' ORDER BY (r.embedding <=> $3) + 0 LIMIT $13'
    USING p_tenant, p_user, p_vector, p_kinds, p_session, p_agent, p_after, p_before, p_filter, p_variables,
          p_skip_session, p_skip_offset, p_limit, p_known_at;
END $$;

-- Recall: words and meaning together, for one user. Okapi BM25 (Robertson and Zaragoza, 2009; k1 0.9, b 0.4) over
-- the postings and cosine over the vectors, each cut to its best p_candidates; every candidate gets both scores,
-- scaled to 0..1 and mixed 0.65 to 0.35; then, among the candidates, a turn is lent 0.2 of its neighbours' scores
-- and 0.3 of the mean of its session's best three. Last, the sum is multiplied by what age has left of it (a fact's
-- counts from when it was last confirmed) and, for a fact, by its confidence and by who said it.
CREATE FUNCTION recall(
    p_tenant text, p_user text, p_user_key bigint,
    p_terms bigint[], p_vector vector, p_model text, p_dimensions integer,
    p_kinds text[], p_session text, p_agent text, p_after timestamptz, p_before timestamptz,
    p_filter jsonpath, p_variables jsonb,
    p_skip_session text, p_skip_offset bigint,     -- turns already in the window
    p_limit integer, p_candidates integer,
    p_as_of timestamptz, p_half_life_days double precision, p_recency_share double precision,
    p_floor double precision,                      -- NULL: no floor
    p_floor_grows boolean,                         -- it is what 300 memories need; fewer need less
    p_fact_half_life_days double precision DEFAULT 180,
    p_valid_at timestamptz DEFAULT NULL,           -- facts that hold then; NULL: at p_as_of
    p_known_at timestamptz DEFAULT NULL            -- as it was then; NULL: now
) RETURNS TABLE (
    id uuid, kind text, session_id text, seq bigint, role text, content text, message jsonb, metadata jsonb,
    token_count integer, created_at timestamptz, score double precision, lexical double precision,
    dense double precision, neighbour double precision, episode double precision, decay double precision,
    bm25 double precision, cosine double precision, weight double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
-- Its own statements walk from key to key whatever the values; planning them each time would cost 1 to 2 ms.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_deep    bigint;                    -- how far down the ranking candidates may be; NULL: all of it
    v_hot     integer;                   -- a term in more records than this is left out of BM25
    c_covered CONSTANT double precision := 0.25;  -- what all of the query's words in one record add to the cosine
    c_own     CONSTANT double precision := 0.7;   -- of the floor, for each memory
    c_small   CONSTANT bigint := 20;             -- records below which rarity is judged as if there were so many
    c_words   CONSTANT double precision := 0.34;  -- the floor where no cosine is known: covered × rare
    v_floor   double precision;
    v_total   double precision;          -- idf of all the query's words, those no record holds included
    v_count   double precision;
    v_length  double precision;
    l_ids     uuid[];  l_scores double precision[];  l_idfs double precision[];
    d_ids     uuid[];  d_cosines double precision[];
BEGIN
    IF p_limit < 1 THEN
        RETURN;
    END IF;
    SELECT s.record_count, s.term_total::double precision / greatest(s.record_count, 1) INTO v_count, v_length
    FROM scope_stats s WHERE s.tenant_id = p_tenant AND s.level = 'user' AND s.user_id = p_user;
    IF v_count IS NULL THEN
        SELECT count(*), avg(c.term_total) INTO v_count, v_length FROM (
            SELECT r.term_total FROM records r WHERE r.tenant_id = p_tenant AND r.user_id = p_user LIMIT 5001) c;
    END IF;

    -- A word in a tenth of the records says little (0.001 of recall@10 on LoCoMo) and costs the most to read.
    v_hot := least(2000, greatest(1000, v_count / 10));

    SELECT array_agg(n.id), array_agg(n.cosine) INTO d_ids, d_cosines
    FROM nearest(p_tenant, p_user, p_vector, p_model, p_dimensions, p_kinds, p_session, p_agent, p_after, p_before,
                 p_filter, p_variables, p_skip_session, p_skip_offset, p_candidates, p_known_at) n;

    IF cardinality(p_terms) > 0 THEN
        -- Without a filter only what is in the window, or invalid, can fall out: a short sort instead of a whole one.
        IF p_kinds IS NULL AND p_session IS NULL AND p_agent IS NULL AND p_after IS NULL AND p_before IS NULL
           AND p_filter IS NULL AND p_known_at IS NULL THEN
            SELECT p_candidates + count(*) INTO v_deep FROM records r
            WHERE r.tenant_id = p_tenant AND r.session_id = p_skip_session AND r.seq IS NOT NULL
              AND r.token_offset >= p_skip_offset;
            SELECT v_deep + count(*) INTO v_deep FROM records r
            WHERE r.tenant_id = p_tenant AND r.user_id = p_user AND r.invalidated_at IS NOT NULL;
        END IF;
        WITH query AS MATERIALIZED (
            SELECT t.term, d.df::double precision AS df,
                   ln(1 + (greatest(v_count, d.df, 1) - greatest(d.df, 1) + 0.5::float8)
                          / (greatest(d.df, 1) + 0.5::float8)) AS idf,
                   -- For the floor: in a store of three every word is common, which says nothing against it.
                   ln(1 + (greatest(v_count, d.df, c_small) - greatest(d.df, 1) + 0.5::float8)
                          / (greatest(d.df, 1) + 0.5::float8)) AS weight
            FROM unnest(p_terms) AS t (term)
            CROSS JOIN LATERAL (
                SELECT count(*) AS df FROM (
                    SELECT FROM postings p
                    WHERE p.tenant_id = p_tenant AND p.user_key = p_user_key AND p.term = t.term LIMIT v_hot + 1) x
            ) AS d
            WHERE d.df <= v_hot  -- what no record holds finds nothing, but was asked for: as rare as can be
        ), hit AS MATERIALIZED (
            SELECT p.record_id, sum(q.weight) AS idf,
                   sum(q.idf * p.tf * 1.9::float8
                       / (p.tf + 0.9::float8 * (0.6::float8 + 0.4::float8 * p.len / greatest(v_length, 1)))) AS bm25
            FROM query q
            JOIN postings p ON p.tenant_id = p_tenant AND p.user_key = p_user_key AND p.term = q.term
            GROUP BY p.record_id
        ), ranked AS MATERIALIZED (
            SELECT h.record_id, h.bm25, h.idf FROM hit h ORDER BY h.bm25 DESC, h.record_id LIMIT v_deep
        ), kept AS (  -- walks down the ranking until enough of it passes the filters
            SELECT k.record_id, k.bm25, k.idf FROM ranked k
            CROSS JOIN LATERAL (
                SELECT FROM records r
                WHERE r.tenant_id = p_tenant AND r.id = k.record_id AND r.user_id = p_user
                  AND CASE WHEN p_known_at IS NULL THEN r.invalidated_at IS NULL
                           ELSE r.recorded_at <= p_known_at
                                AND (r.invalidated_at IS NULL OR r.invalidated_at > p_known_at) END
                  AND (p_kinds IS NULL OR r.kind = ANY (p_kinds))
                  AND (p_session IS NULL OR r.session_id = p_session)
                  AND (p_agent IS NULL OR r.agent_id = p_agent)
                  AND (p_after IS NULL OR r.created_at >= p_after)
                  AND (p_before IS NULL OR r.created_at < p_before)
                  AND (p_filter IS NULL OR jsonb_path_match(r.metadata, p_filter, p_variables, true))
                  AND (p_skip_session IS NULL OR NOT (
                       r.session_id = p_skip_session AND r.seq IS NOT NULL AND r.token_offset >= p_skip_offset))
                OFFSET 0
            ) AS live
            LIMIT p_candidates
        ), scored AS (
            SELECT * FROM kept
            UNION
            SELECT h.record_id, h.bm25, h.idf FROM hit h WHERE h.record_id = ANY (d_ids)
        )
        SELECT array_agg(k.record_id), array_agg(k.bm25), array_agg(k.idf), (SELECT sum(q.weight) FROM query q)
        INTO l_ids, l_scores, l_idfs, v_total FROM scored k;
    END IF;
    v_total := greatest(v_total, 1e-9);  -- greatest passes over NULL
    -- The best of many unrelated cosines is higher than the best of few: a smaller store asks for less.
    v_floor := CASE WHEN p_floor_grows THEN least(p_floor, p_floor * ln(5 + v_count) / ln(305::float8)) ELSE p_floor END;

    RETURN QUERY
    WITH found AS (
        SELECT u.id, max(u.bm25) AS bm25, max(u.idf) AS idf, max(u.cosine) AS cosine
        FROM (SELECT l.id, l.bm25, l.idf, NULL::float8 AS cosine FROM unnest(l_ids, l_scores, l_idfs) AS l (id, bm25, idf)
              UNION ALL
              SELECT d.id, NULL, NULL, d.cosine FROM unnest(d_ids, d_cosines) AS d (id, cosine)) u
        GROUP BY u.id
    ), raw AS MATERIALIZED (
        SELECT r.id, r.session_id, r.seq, r.created_at, coalesce(f.bm25, 0) AS bm25,
               coalesce(f.idf, 0) / v_total AS covered,
               coalesce(f.idf, 0) / ln(1 + (greatest(v_count, c_small) - 0.5::float8) / 1.5::float8) AS rare,
               coalesce(f.cosine, CASE WHEN r.model = p_model THEN 1 - (r.embedding <=> p_vector) END) AS cosine,
               coalesce(b.weight, 1) AS weight, coalesce(b.last_confirmed_at, r.created_at) AS said_at,
               CASE WHEN b.weight IS NULL THEN p_half_life_days ELSE p_fact_half_life_days END AS half_life
        FROM found f JOIN records r ON r.tenant_id = p_tenant AND r.id = f.id
        LEFT JOIN LATERAL (
            SELECT x.last_confirmed_at,
                   x.confidence * CASE x.authority WHEN 'tool' THEN 0.9::float8 WHEN 'agent' THEN 0.8::float8
                                                   ELSE 1 END AS weight,
                   x.valid_from <= coalesce(p_valid_at, p_as_of) AND x.valid_to > coalesce(p_valid_at, p_as_of)
                       AND (x.expires_at IS NULL OR x.expires_at > p_as_of) AS holds
            FROM facts x WHERE r.kind = 'fact' AND x.tenant_id = p_tenant AND x.fact_id = r.id
            OFFSET 0  -- stays a subquery, so that what is not a fact costs no look at the facts
        ) b ON true
        -- A fact whose time is over, or has not come, is not recalled as if it held.
        WHERE b.holds IS NOT false
    ), floor AS MATERIALIZED (
        SELECT p_floor IS NULL OR coalesce(max(raw.cosine) + c_covered * max(raw.covered) >= v_floor, false)
               OR coalesce(max(raw.covered * raw.rare) FILTER (WHERE raw.cosine IS NULL) >= c_words, false) AS passed
        FROM raw
    ), arms AS (
        SELECT raw.*,
               raw.bm25 / greatest(max(raw.bm25) OVER (), 1e-9) AS lexical,
               -- What is not embedded yet is judged by its words alone.
               coalesce((raw.cosine - min(raw.cosine) OVER ())
                        / greatest(max(raw.cosine) OVER () - min(raw.cosine) OVER (), 1e-9),
                        raw.bm25 / greatest(max(raw.bm25) OVER (), 1e-9)) AS dense
        FROM raw, floor WHERE floor.passed
    ), fused AS (
        SELECT arms.*, 0.65::float8 * arms.lexical + 0.35::float8 * arms.dense AS base FROM arms
    ), placed AS (
        SELECT fused.*,
               lag(fused.base) OVER w AS before_base, lag(fused.seq) OVER w AS before_seq,
               lead(fused.base) OVER w AS after_base, lead(fused.seq) OVER w AS after_seq,
               row_number() OVER (PARTITION BY fused.session_id ORDER BY fused.base DESC, fused.id) AS place
        FROM fused WINDOW w AS (PARTITION BY fused.session_id ORDER BY fused.seq)
    ), lent AS (
        SELECT placed.*,
               0.2::float8 * (CASE WHEN placed.before_seq = placed.seq - 1 THEN placed.before_base ELSE 0 END
                              + CASE WHEN placed.after_seq = placed.seq + 1 THEN placed.after_base ELSE 0 END)
                   AS neighbour,
               0.1::float8 * sum(placed.base) FILTER (WHERE placed.place <= 3) OVER (PARTITION BY placed.session_id)
                   AS episode,
               1 - p_recency_share + p_recency_share
                   * power(0.5::float8, least(1000, greatest(extract(epoch FROM p_as_of - placed.said_at)::float8, 0)
                                                    / 86400 / placed.half_life)) AS decay  -- beyond 1,000 it underflows
        FROM placed
    ), best AS (
        SELECT lent.*, (lent.base + lent.neighbour + lent.episode) * lent.decay * lent.weight AS score
        FROM lent
        -- Past the floor each memory must still bear a share of it by itself: the best of a poor lot opens the door for
        -- none of the rest. What is not embedded yet must share words.
        WHERE p_floor IS NULL OR (CASE WHEN lent.cosine IS NULL THEN lent.covered * lent.rare >= c_own * c_words
                                       ELSE lent.cosine + c_covered * lent.covered >= c_own * v_floor END)
        ORDER BY score DESC, lent.created_at DESC, lent.id LIMIT p_limit
    )
    SELECT b.id, r.kind, b.session_id, b.seq, r.role, r.content, r.message, r.metadata, r.token_count, b.created_at,
           b.score, b.lexical, b.dense, b.neighbour, b.episode, b.decay, b.bm25, b.cosine, b.weight
    FROM best b JOIN records r ON r.tenant_id = p_tenant AND r.id = b.id
    ORDER BY b.score DESC, b.created_at DESC, b.id;
END $$;
