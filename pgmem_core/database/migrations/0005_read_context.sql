-- The read of a turn: the session, its window and what is recalled, as rows of one shape. part: 0 the session,
-- 1 turns pinned before the window, 2 the window, 3 recalled, 4 the user's standing facts, 5 execution memory, 6 the
-- narrative, 7 the session's running summary, 8 the moment of the read. A function, so that it is planned once a
-- connection.
CREATE FUNCTION read_context(
    p_tenant text, p_this_session text, p_window_tokens bigint, p_window_turns bigint,
    p_user text, p_user_key bigint, p_terms bigint[], p_vector vector, p_model text, p_dimensions integer,
    p_kinds text[], p_session text, p_agent text, p_after timestamptz, p_before timestamptz,
    p_filter jsonpath, p_variables jsonb, p_limit integer, p_candidates integer,
    p_as_of timestamptz, p_half_life_days double precision, p_recency_share double precision,
    p_floor double precision, p_floor_grows boolean, p_fact_half_life_days double precision,
    p_valid_at timestamptz, p_known_at timestamptz,    -- NULL: now
    -- What the injection log says of the read that is told again; else NULL. Version 0: there was none.
    p_from bigint, p_through bigint, p_prefix_at timestamptz, p_standing uuid[], p_recalled uuid[],
    p_narrative integer, p_summary integer,
    -- The caller shows the session's turns itself, from the first of these on: they are not brought, nor recalled.
    p_held uuid[]
) RETURNS TABLE (
    part integer, id uuid, kind text, session_id text, seq bigint, role text, content text, message jsonb,
    metadata jsonb, token_count integer, created_at timestamptz, score double precision, lexical double precision,
    dense double precision, neighbour double precision, episode double precision, decay double precision,
    bm25 double precision, cosine double precision, weight double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    s         sessions%ROWTYPE;
    v_there   boolean;
    v_summary record;
    v_from    bigint := 0;   -- the window starts at a multiple of half its size: its first turn stays for many turns
    v_after   bigint := 0;
    v_first   bigint;
    v_offset  bigint;
    v_user    bigint;        -- the newest user turn of the window
    v_known   timestamptz := coalesce(p_known_at, 'infinity');                       -- recorded by then …
    v_still   timestamptz := coalesce(p_known_at + interval '1 microsecond', 'infinity');  -- … and not superseded
    v_valid   timestamptz := coalesce(p_valid_at, p_as_of);
    c_keys    CONSTANT integer := 50;   -- of execution memory, the newest; and of a value so many characters:
    c_value   CONSTANT integer := 8192;
BEGIN
    part := 8; created_at := coalesce(p_known_at, clock_timestamp());
    RETURN NEXT;
    SELECT * INTO s FROM sessions WHERE tenant_id = p_tenant AND session_id = p_this_session;
    v_there := FOUND;
    IF v_there THEN
        IF p_known_at IS NOT NULL THEN
            SELECT r.seq, r.token_offset + r.token_count INTO s.last_seq, s.token_total FROM records r
            WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                AND CASE WHEN p_through IS NULL THEN r.recorded_at <= p_known_at ELSE r.seq <= p_through END
            ORDER BY r.seq DESC LIMIT 1;
            s.last_seq := coalesce(s.last_seq, 0);
            IF p_prefix_at IS NOT NULL THEN
                s.prefix_at := p_prefix_at;
            ELSIF s.prefix_at > p_known_at THEN
                s.prefix_at := coalesce(
                    (SELECT max(c.created_at) FROM running_summaries c WHERE c.tenant_id = p_tenant
                        AND c.session_id = p_this_session AND c.created_at <= p_known_at), s.created_at);
            END IF;
        END IF;
        part := 0; kind := s.user_id; session_id := s.session_id; seq := s.last_seq; created_at := s.prefix_at;
        RETURN NEXT;
        IF p_held IS NOT NULL THEN
            SELECT min(r.token_offset) INTO v_offset FROM records r
            WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                AND r.id IN (SELECT unnest(p_held) UNION ALL SELECT a.id FROM records a
                             WHERE a.tenant_id = p_tenant AND a.alias_id = ANY (p_held));
        END IF;
        SELECT * INTO v_summary FROM running_summaries c
        WHERE c.tenant_id = p_tenant AND c.session_id = p_this_session
            AND c.created_at <= v_known AND (p_summary IS NULL OR c.version = p_summary)
        ORDER BY c.version DESC LIMIT 1;
        IF FOUND AND v_offset IS DISTINCT FROM 0 THEN  -- a caller that shows all needs no summary
            part := 7; kind := 'summary'; seq := v_summary.version; content := v_summary.content;
            created_at := v_summary.created_at;
            RETURN NEXT;
        END IF;

        IF p_held IS NULL THEN
            IF p_from IS NOT NULL THEN
                v_after := p_from - 1;
            ELSE
                IF s.token_total > p_window_tokens THEN
                    v_from := ceil((s.token_total - p_window_tokens) / (p_window_tokens / 2.0))::bigint
                        * (p_window_tokens / 2);
                END IF;
                IF s.parted > 0 AND p_known_at IS NULL THEN
                    -- Turns have left: the step is counted in those that have not, from the newest backwards.
                    v_after := s.last_seq - s.parted - p_window_turns;
                    IF v_after > 0 THEN
                        v_after := s.last_seq - s.parted
                            - ceil(v_after / (p_window_turns / 2.0))::bigint * (p_window_turns / 2);
                        SELECT r.seq INTO v_after FROM records r
                        WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                            AND r.archived_at IS NULL ORDER BY r.seq DESC OFFSET v_after LIMIT 1;
                    END IF;
                    v_after := greatest(coalesce(v_after, 0), 0);
                ELSIF s.last_seq > p_window_turns THEN
                    v_after := ceil((s.last_seq - p_window_turns) / (p_window_turns / 2.0))::bigint
                        * (p_window_turns / 2);
                END IF;
            END IF;
            SELECT min(w.seq), min(w.token_offset), max(w.seq) FILTER (WHERE w.role = 'user')
            INTO v_first, v_offset, v_user
            FROM (SELECT r.seq, r.token_offset, r.role FROM records r
                  WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                      AND r.seq > v_after
                      AND r.seq <= s.last_seq AND (r.archived_at IS NULL OR r.archived_at > p_known_at)
                  ORDER BY r.seq DESC LIMIT greatest(p_window_turns, p_through - p_from + 1)) w
            -- What was archived since the moment that is asked about has no place among the tokens any more.
            WHERE w.token_offset >= v_from OR w.token_offset < 0 OR w.seq = s.last_seq;
            v_first := coalesce(p_from, v_first);
            -- The newest is kept however long it is, also where it is not the last.
            IF v_first IS NULL AND s.parted > 0 THEN
                SELECT r.seq, r.token_offset, CASE WHEN r.role = 'user' THEN r.seq END INTO v_first, v_offset, v_user
                FROM records r
                WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                    AND r.seq <= s.last_seq
                    AND (r.archived_at IS NULL OR r.archived_at > p_known_at) ORDER BY r.seq DESC LIMIT 1;
            END IF;
            IF p_from IS NULL AND v_summary.version IS NOT NULL AND (v_from > 0 OR v_after > 0)
               AND v_summary.through_seq >= v_first THEN
                -- A session that has outgrown its window does not say twice what its summary tells; but the newest
                -- question stays, with all that came after it.
                v_first := least(v_summary.through_seq + 1, v_user);
                SELECT min(r.token_offset) INTO v_offset FROM records r
                WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                    AND r.seq >= v_first AND r.archived_at IS NULL;
            END IF;
            RETURN QUERY SELECT 2, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
                r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
                NULL::float8, NULL::float8, NULL::float8, NULL::float8
            FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                AND r.seq >= v_first AND r.seq <= s.last_seq AND (r.archived_at IS NULL OR r.archived_at > p_known_at)
            ORDER BY r.seq;
            -- Instructions, and the newest user turn, stay however far the window has moved on.
            RETURN QUERY SELECT 1, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
                r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
                NULL::float8, NULL::float8, NULL::float8, NULL::float8
            FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session
                AND r.role IN ('system', 'developer') AND r.seq < v_first
                AND (r.archived_at IS NULL OR r.archived_at > p_known_at) ORDER BY r.seq DESC LIMIT 4;
            IF v_user IS NULL AND v_first > 1 THEN
                RETURN QUERY SELECT 1, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
                    r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
                    NULL::float8, NULL::float8, NULL::float8, NULL::float8
                FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                    AND r.role = 'user' AND r.seq < v_first
                    AND (r.archived_at IS NULL OR r.archived_at > p_known_at) ORDER BY r.seq DESC LIMIT 1;
            END IF;
        END IF;
    END IF;

    -- The narrative is part of the stable prefix: a newer one waits until that is rendered anew.
    RETURN QUERY SELECT 6, NULL::uuid, 'narrative', NULL::text, n.version::bigint, NULL::text, n.content, NULL::jsonb,
        NULL::jsonb, NULL::integer, n.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
        NULL::float8, NULL::float8, NULL::float8, NULL::float8
    FROM narratives n WHERE n.tenant_id = p_tenant AND n.user_id = p_user
        AND n.created_at <= least(v_known, s.prefix_at) AND (p_narrative IS NULL OR n.version = p_narrative)
    ORDER BY n.version DESC LIMIT 1;
    -- The best 100 of those the stable prefix may show, and of those learnt since: the old never hide the new.
    RETURN QUERY SELECT 4, f.fact_id, j.kind, f.session_id, NULL::bigint, f.authority, f.predicate, f.value,
        jsonb_build_object('subject', j.identifier), NULL::integer, f.recorded_at, f.confidence::float8, NULL::float8,
        NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8
    FROM (SELECT f.*, row_number() OVER (
              PARTITION BY f.recorded_at > s.prefix_at
              ORDER BY CASE f.authority WHEN 'user' THEN 0 WHEN 'system' THEN 1 WHEN 'tool' THEN 2 ELSE 3 END,
                       f.predicate, f.recorded_at, f.fact_id) AS place
          FROM facts f
          WHERE f.tenant_id = p_tenant AND f.user_id = p_user
              AND CASE WHEN p_standing IS NULL
                  THEN f.status = 'accepted' AND f.recorded_at <= v_known AND f.superseded_at >= v_still
                      AND f.valid_from <= v_valid AND f.valid_to > v_valid
                      AND (f.expires_at IS NULL OR f.expires_at > p_as_of)
                  ELSE f.fact_id = ANY (p_standing) END) f
    JOIN subjects j ON j.tenant_id = f.tenant_id AND j.subject_id = f.subject_id
    WHERE f.place <= 100 ORDER BY f.place;
    IF p_known_at IS NULL AND p_held IS NULL AND s.ended_at IS NULL THEN
        -- seq: how many keys there are. A value that is too long comes as the beginning of its text.
        RETURN QUERY SELECT 5, NULL::uuid, 'execution', p_this_session, e.total, NULL::text, e.key,
            CASE WHEN length(e.value::text) <= c_value THEN e.value ELSE to_jsonb(left(e.value::text, c_value)) END,
            NULL::jsonb, CASE WHEN length(e.value::text) > c_value THEN length(e.value::text) END, e.set_at,
            NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8
        FROM (SELECT x.*, count(*) OVER () AS total FROM execution x
              WHERE x.tenant_id = p_tenant AND x.session_id = p_this_session
                  AND (x.expires_at IS NULL OR x.expires_at > clock_timestamp())
              ORDER BY x.set_at DESC, x.key LIMIT c_keys) e
        ORDER BY e.set_at DESC, e.key;
    END IF;
    IF p_recalled IS NOT NULL THEN
        RETURN QUERY SELECT 3, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
            r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8, NULL::float8
        FROM unnest(p_recalled) WITH ORDINALITY AS u (id, place)
        JOIN records r ON r.tenant_id = p_tenant AND r.id = u.id AND r.user_id = p_user
        ORDER BY u.place;
    ELSE
        RETURN QUERY SELECT 3, m.* FROM recall(
            p_tenant, p_user, p_user_key, p_terms, p_vector, p_model, p_dimensions, p_kinds, p_session, p_agent,
            p_after, p_before, p_filter, p_variables, p_this_session, coalesce(v_offset, 9223372036854775807), p_limit,
            p_candidates, p_as_of, p_half_life_days, p_recency_share, p_floor, p_floor_grows, p_fact_half_life_days,
            p_valid_at, p_known_at) m;
    END IF;
END $$;
