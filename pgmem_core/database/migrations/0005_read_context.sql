-- The read of a turn: the session, its window and what is recalled, as rows of one shape. part: 0 the session,
-- 1 turns pinned before the window, 2 the window, 3 recalled, 4 the user's standing facts, 5 execution memory, 6 the
-- narrative. A function, so that it is planned once a connection.
CREATE FUNCTION read_context(
    p_tenant text, p_this_session text, p_window_tokens bigint, p_window_turns bigint,
    p_user text, p_user_key bigint, p_terms bigint[], p_vector vector, p_model text, p_dimensions integer,
    p_kinds text[], p_session text, p_agent text, p_after timestamptz, p_before timestamptz,
    p_filter jsonpath, p_variables jsonb, p_limit integer, p_candidates integer,
    p_as_of timestamptz, p_half_life_days double precision, p_recency_share double precision,
    p_floor double precision, p_floor_grows boolean
) RETURNS TABLE (
    part integer, id uuid, kind text, session_id text, seq bigint, role text, content text, message jsonb,
    metadata jsonb, token_count integer, created_at timestamptz, score double precision, lexical double precision,
    dense double precision, neighbour double precision, episode double precision, decay double precision,
    bm25 double precision, cosine double precision)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    s        sessions%ROWTYPE;
    v_from   bigint := 0;   -- the window starts at a multiple of half its size: its first turn stays for many turns
    v_after  bigint := 0;
    v_first  bigint;
    v_offset bigint := 9223372036854775807;
    v_asked  boolean := false;
    v_now    timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO s FROM sessions WHERE tenant_id = p_tenant AND session_id = p_this_session;
    IF FOUND THEN
        IF s.token_total > p_window_tokens THEN
            v_from := ceil((s.token_total - p_window_tokens) / (p_window_tokens / 2.0))::bigint * (p_window_tokens / 2);
        END IF;
        IF s.last_seq > p_window_turns THEN
            v_after := ceil((s.last_seq - p_window_turns) / (p_window_turns / 2.0))::bigint * (p_window_turns / 2);
        END IF;
        RETURN QUERY SELECT 0, NULL::uuid, s.user_id, s.session_id, s.last_seq, NULL::text, s.running_summary,
            NULL::jsonb, NULL::jsonb, NULL::integer, s.prefix_at, NULL::float8, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8;
        SELECT min(w.seq), min(w.token_offset), coalesce(bool_or(w.role = 'user'), false)
        INTO v_first, v_offset, v_asked
        FROM (SELECT r.seq, r.token_offset, r.role FROM records r
              WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL AND r.seq > v_after
              ORDER BY r.seq DESC LIMIT p_window_turns) w
        WHERE w.token_offset >= v_from OR w.seq = s.last_seq;
        v_offset := coalesce(v_offset, 9223372036854775807);
        RETURN QUERY SELECT 2, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
            r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8
        FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
            AND r.seq >= v_first ORDER BY r.seq;
        -- Instructions, and the newest user turn, stay however far the window has moved on.
        RETURN QUERY SELECT 1, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
            r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8
        FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session
            AND r.role IN ('system', 'developer') AND r.seq < v_first ORDER BY r.seq DESC LIMIT 4;
        IF NOT v_asked AND v_first > 1 THEN
            RETURN QUERY SELECT 1, r.id, r.kind, r.session_id, r.seq, r.role, r.content, r.message, r.metadata,
                r.token_count, r.created_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
                NULL::float8, NULL::float8, NULL::float8
            FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_this_session AND r.seq IS NOT NULL
                AND r.role = 'user' AND r.seq < v_first ORDER BY r.seq DESC LIMIT 1;
        END IF;
    END IF;
    -- The best 100 of those the stable prefix may show, and of those learnt since: the old never hide the new.
    RETURN QUERY SELECT 4, f.fact_id, j.kind, f.session_id, NULL::bigint, f.authority, f.predicate, f.value,
        jsonb_build_object('subject', j.identifier), NULL::integer, f.recorded_at, f.confidence::float8, NULL::float8,
        NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8
    FROM (SELECT f.*, row_number() OVER (
              PARTITION BY f.recorded_at > s.prefix_at
              ORDER BY CASE f.authority WHEN 'user' THEN 0 WHEN 'system' THEN 1 WHEN 'tool' THEN 2 ELSE 3 END,
                       f.predicate, f.recorded_at, f.fact_id) AS place
          FROM facts f
          WHERE f.tenant_id = p_tenant AND f.user_id = p_user AND f.status = 'accepted' AND f.superseded_at = 'infinity'
              AND f.valid_from <= p_as_of AND f.valid_to > p_as_of
              AND (f.expires_at IS NULL OR f.expires_at > p_as_of)) f
    JOIN subjects j ON j.tenant_id = f.tenant_id AND j.subject_id = f.subject_id
    WHERE f.place <= 100 ORDER BY f.place;
    RETURN QUERY SELECT 5, NULL::uuid, 'execution', p_this_session, NULL::bigint, NULL::text, e.key, e.value,
        NULL::jsonb, NULL::integer, e.set_at, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
        NULL::float8, NULL::float8, NULL::float8
    FROM execution e WHERE e.tenant_id = p_tenant AND e.session_id = p_this_session AND s.ended_at IS NULL
        AND (e.expires_at IS NULL OR e.expires_at > clock_timestamp())
    ORDER BY e.key;
    RETURN QUERY SELECT 3, m.* FROM recall(
        p_tenant, p_user, p_user_key, p_terms, p_vector, p_model, p_dimensions, p_kinds, p_session, p_agent, p_after,
        p_before, p_filter, p_variables, p_this_session, v_offset, p_limit, p_candidates, p_as_of, p_half_life_days,
        p_recency_share, p_floor, p_floor_grows) m;
END $$;
