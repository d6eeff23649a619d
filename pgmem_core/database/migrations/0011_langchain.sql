-- What the LangChain adapter asks of the database.

-- append_turns for a chat history, in one round trip.
-- A client that sends its whole conversation again: a batch strictly longer than the stored session that begins with
-- all of it stores only the rest. A message is the same if its id is, or (where one of the two has none) its role, its
-- content and its tool calls' ids are.
-- A message that was taken back and comes again under its id is stored again, under an id derived from that one.
CREATE FUNCTION append_aligned(
    p_tenant text, p_session text, p_user text, p_user_key bigint, p_agent text, p_create boolean, p_turns jsonb,
    p_terms bigint[], p_counts smallint[], p_ends integer[], p_model text, p_vectors vector[]
) RETURNS TABLE (turn_id uuid, turn_seq bigint, turn_created_at timestamptz, stored boolean)
-- Planned while the tables are all but empty, a look by key would be a scan for as long as the connection lives: 5 ms
-- instead of 1 after a thousand turns.
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_last  bigint;  v_parted bigint;
    v_known bigint := 0;
    v_same  boolean;
    v_start integer;
    v_id    uuid;  v_time integer;
BEGIN
    SELECT s.last_seq, s.parted INTO v_last, v_parted FROM sessions s
    WHERE s.tenant_id = p_tenant AND s.session_id = p_session AND s.user_id = p_user FOR NO KEY UPDATE;

    IF v_parted > 0 THEN
        FOR v_i IN 0 .. jsonb_array_length(p_turns) - 1 LOOP
            CONTINUE WHEN NOT (p_turns->v_i->>'given')::boolean;
            v_id := (p_turns->v_i->>'id')::uuid;
            v_time := 0;
            WHILE EXISTS (SELECT FROM records r WHERE r.tenant_id = p_tenant AND r.session_id = p_session
                          AND (r.id = v_id OR r.alias_id = v_id) AND r.seq IS NOT NULL
                          AND r.invalidated_at IS NOT NULL) LOOP
                v_time := v_time + 1;
                v_id := md5((p_turns->v_i->>'id') || ' ' || v_time)::uuid;
            END LOOP;
            IF v_time > 0 THEN
                p_turns := jsonb_set(p_turns, ARRAY[v_i::text, 'id'], to_jsonb(v_id));
            END IF;
        END LOOP;
    END IF;

    -- Live turns are at least v_last - v_parted: a batch that is not longer needs no look at them.
    IF v_last > 0 AND v_last - v_parted < jsonb_array_length(p_turns) THEN
        SELECT count(*), bool_and(coalesce(
                   t.value->>'id' IN (r.id::text, coalesce(r.alias_id, r.id)::text)
                   -- Ids that callers give are not of version 7, which is what pgmem mints.
                   OR NOT ((t.value->>'given')::boolean AND substr(r.id::text, 15, 1) <> '7')
                      AND r.role = t.value->>'role' AND r.content = t.value->>'content'
                      AND r.message->'content' IS NOT DISTINCT FROM t.value->'message'->'content'
                      AND r.message->'tool_call_id' IS NOT DISTINCT FROM t.value->'message'->'tool_call_id'
                      AND jsonb_path_query_array(coalesce(r.message, '{}'), '$.tool_calls[*].id')
                          = jsonb_path_query_array(t.value, '$.message.tool_calls[*].id'), false))
        INTO v_known, v_same
        FROM (SELECT r.*, row_number() OVER (ORDER BY r.seq) AS place FROM records r
              WHERE r.tenant_id = p_tenant AND r.session_id = p_session AND r.seq IS NOT NULL
                AND (r.archived_at IS NULL OR r.invalidated_at IS NULL)) r
        LEFT JOIN jsonb_array_elements(p_turns) WITH ORDINALITY AS t (value, place) USING (place);
        IF v_same IS NOT TRUE OR v_known >= jsonb_array_length(p_turns) THEN
            v_known := 0;
        END IF;
    END IF;
    IF v_known > 0 THEN
        RETURN QUERY SELECT r.id, r.seq, r.created_at, false FROM records r
            WHERE r.tenant_id = p_tenant AND r.session_id = p_session AND r.seq IS NOT NULL
              AND (r.archived_at IS NULL OR r.invalidated_at IS NULL) ORDER BY r.seq;
        v_start := p_ends[v_known];
        p_turns := (SELECT jsonb_agg(t.value ORDER BY t.place)
                    FROM jsonb_array_elements(p_turns) WITH ORDINALITY AS t (value, place) WHERE t.place > v_known);
        p_terms := p_terms[v_start + 1:];
        p_counts := p_counts[v_start + 1:];
        p_ends := ARRAY(SELECT e.value - v_start FROM unnest(p_ends) WITH ORDINALITY AS e (value, place)
                        WHERE e.place > v_known ORDER BY e.place);
        p_vectors := p_vectors[v_known + 1:];
    END IF;
    RETURN QUERY SELECT a.* FROM append_turns(p_tenant, p_session, p_user, p_user_key, p_agent, p_create, p_turns,
        p_terms, p_counts, p_ends, p_model, p_vectors) a;
END $$;
