-- The writes of a turn, one round trip each. Lock order everywhere: session, then records, then postings.

CREATE FUNCTION append_turns(
    p_tenant text, p_session text, p_user text, p_user_key bigint, p_agent text,
    p_create boolean,                    -- make the session if it is missing
    p_turns jsonb,                       -- array of turns, in order
    p_terms bigint[], p_counts smallint[], p_ends integer[],  -- turn i's terms end at p_ends[i]
    p_model text, p_vectors vector[]     -- NULL, or one vector a turn
) RETURNS TABLE (turn_id uuid, turn_seq bigint, turn_created_at timestamptz, stored boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    s        sessions%ROWTYPE;
    t        jsonb;
    found_id uuid;  found_session text;  found_seq bigint;  found_at timestamptz;
    v_id     uuid;  v_start integer := 1;  v_end integer;  v_i integer := 0;
    v_terms  bigint[];  v_silent boolean;  v_wrote boolean := false;  v_searchable boolean := false;
    v_tokens integer;  v_spoken boolean := false;
BEGIN
    -- The session's row is the lock: seq is gapless because nobody else can read last_seq until we commit.
    SELECT * INTO s FROM sessions WHERE tenant_id = p_tenant AND session_id = p_session FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        IF NOT p_create THEN
            RAISE EXCEPTION 'no session %', p_session USING ERRCODE = 'PGM01';
        END IF;
        INSERT INTO sessions (tenant_id, session_id, user_id, agent_id)
        VALUES (p_tenant, p_session, p_user, p_agent) ON CONFLICT DO NOTHING;
        SELECT * INTO s FROM sessions WHERE tenant_id = p_tenant AND session_id = p_session FOR NO KEY UPDATE;
    END IF;
    IF s.user_id <> p_user THEN
        RAISE EXCEPTION 'session % belongs to another user', p_session USING ERRCODE = 'PGM02';
    END IF;

    FOR t IN SELECT value FROM jsonb_array_elements(p_turns) LOOP
        v_i := v_i + 1;
        v_end := p_ends[v_i];
        v_terms := p_terms[v_start:v_end];
        v_id := (t->>'id')::uuid;
        found_id := NULL;

        -- A retried write lands on what it stored the first time.
        SELECT r.id, r.session_id, r.seq, r.created_at INTO found_id, found_session, found_seq, found_at
        FROM records r WHERE r.tenant_id = p_tenant AND r.id = v_id;
        IF found_id IS NULL AND (t->>'given')::boolean THEN
            SELECT r.id, r.session_id, r.seq, r.created_at INTO found_id, found_session, found_seq, found_at
            FROM records r WHERE r.tenant_id = p_tenant AND r.alias_id = v_id;
        END IF;
        IF found_id IS NOT NULL AND (found_session <> p_session OR found_seq IS NULL) THEN
            RAISE EXCEPTION 'id % is in use in another session', v_id USING ERRCODE = 'PGM03';
        END IF;

        IF found_id IS NULL AND (t->>'provisional')::boolean THEN
            -- A query on its way to becoming a turn: an explicit write of the same words since then is it.
            SELECT r.id, r.seq, r.created_at INTO found_id, found_seq, found_at
            FROM records r
            WHERE r.tenant_id = p_tenant AND r.session_id = p_session AND r.seq > (t->>'after_seq')::bigint
              AND r.seq IS NOT NULL AND r.role = 'user' AND r.content = t->>'content'
              -- The same words about another picture are another turn.
              AND (r.message->'content' = t->'message'->'content') IS NOT false
            ORDER BY r.seq LIMIT 1;
        ELSIF found_id IS NULL AND t->>'role' = 'user' THEN
            -- The explicit write of a query that is stored already: same row, claimed once.
            UPDATE records r SET
                provisional = false,
                alias_id = CASE WHEN (t->>'given')::boolean THEN v_id END,
                message = CASE WHEN nullif(t->'message', 'null'::jsonb) IS NULL THEN r.message
                               ELSE coalesce(r.message, '{}') || (t->'message') END,
                metadata = r.metadata || (t->'metadata'),
                created_at = coalesce((t->>'created_at')::timestamptz, r.created_at)
            WHERE r.tenant_id = p_tenant AND r.session_id = p_session AND r.seq = s.last_seq
              AND r.provisional AND r.role = 'user' AND r.content = t->>'content'
              AND (r.message->'content' = t->'message'->'content') IS NOT false
            RETURNING r.id, r.seq, r.created_at INTO found_id, found_seq, found_at;
        ELSIF found_id IS NOT NULL AND NOT (t->>'provisional')::boolean THEN
            UPDATE records r SET provisional = false
            WHERE r.tenant_id = p_tenant AND r.id = found_id AND r.provisional;
        END IF;

        IF found_id IS NOT NULL THEN
            turn_id := found_id; turn_seq := found_seq; turn_created_at := found_at; stored := false;
            v_start := v_end + 1;
            RETURN NEXT;
            CONTINUE;
        END IF;

        v_silent := t->>'role' IN ('system', 'developer');
        v_tokens := (t->>'token_count')::integer;
        INSERT INTO records (tenant_id, id, user_id, user_key, session_id, agent_id, kind, seq, role, content,
                             message, metadata, token_count, token_offset, provisional, created_at,
                             terms, term_total, model, embedding)
        VALUES (p_tenant, v_id, p_user, p_user_key, p_session, s.agent_id, 'turn', s.last_seq + 1, t->>'role',
                t->>'content', nullif(t->'message', 'null'::jsonb), t->'metadata', v_tokens, s.token_total,
                (t->>'provisional')::boolean,
                coalesce((t->>'created_at')::timestamptz, clock_timestamp()),
                v_terms, (t->>'term_total')::integer,
                CASE WHEN p_vectors[v_i] IS NOT NULL THEN p_model END, p_vectors[v_i])
        RETURNING id, seq, created_at INTO turn_id, turn_seq, turn_created_at;
        INSERT INTO postings (tenant_id, user_key, term, record_id, tf, len)
        SELECT p_tenant, p_user_key, u.term, v_id, u.tf, (t->>'term_total')::smallint
        FROM unnest(v_terms, p_counts[v_start:v_end]) AS u (term, tf);
        s.last_seq := s.last_seq + 1;
        s.token_total := s.token_total + v_tokens;
        v_wrote := true;
        v_spoken := v_spoken OR NOT v_silent;
        v_searchable := v_searchable OR (NOT v_silent AND p_vectors[v_i] IS NULL);
        stored := true;
        v_start := v_end + 1;
        RETURN NEXT;
    END LOOP;

    IF v_wrote THEN
        UPDATE sessions SET last_seq = s.last_seq, token_total = s.token_total,
                            dirty = sessions.dirty OR v_searchable,
                            unformed = sessions.unformed OR v_spoken,
                            uncompacted = sessions.uncompacted OR v_spoken, touched_at = clock_timestamp()
        WHERE tenant_id = p_tenant AND session_id = p_session;
    END IF;
END $$;

CREATE FUNCTION refresh_scope_stats(p_tenant text, p_user text, p_added bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    v_level text := CASE WHEN p_user IS NULL THEN 'tenant' ELSE 'user' END;
BEGIN
    -- Counting costs about 1 µs a record, so a scope is counted at most once in record_count milliseconds, or when
    -- a fifth was added at once. In between the count is a little low: it weighs words and guards a choice of plans.
    IF EXISTS (SELECT FROM scope_stats s
               WHERE s.tenant_id = p_tenant AND s.level = v_level AND s.user_id = coalesce(p_user, '')
                 AND s.record_count > 1000 AND p_added * 5 < s.record_count
                 AND s.counted_at > clock_timestamp() - s.record_count * interval '1 millisecond') THEN
        RETURN;
    END IF;
    -- Of two transactions that would count the same scope, the second leaves it to the first.
    IF NOT pg_try_advisory_xact_lock(
        hashtextextended('pgmem stats ' || p_tenant || chr(31) || coalesce(p_user, chr(31)), 0)) THEN
        RETURN;
    END IF;
    INSERT INTO scope_stats (tenant_id, level, user_id, record_count, term_total)
    SELECT p_tenant, v_level, coalesce(p_user, ''), count(*), coalesce(sum(r.term_total), 0)
    FROM records r WHERE r.tenant_id = p_tenant AND (p_user IS NULL OR r.user_id = p_user)
    ON CONFLICT (tenant_id, level, user_id) DO UPDATE
    SET record_count = excluded.record_count, term_total = excluded.term_total, counted_at = clock_timestamp();
END $$;
