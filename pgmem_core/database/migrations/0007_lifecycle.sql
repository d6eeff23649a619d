-- Forgetting: a memory goes with everything that was made of it, and a hash of what it was keeps it away.

CREATE INDEX subjects_by_name ON subjects (tenant_id, kind, identifier);
CREATE INDEX facts_of_session ON facts (tenant_id, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX facts_expiring ON facts (tenant_id, expires_at) WHERE expires_at IS NOT NULL AND superseded_at = 'infinity';
CREATE INDEX injections_of_user ON injections (tenant_id, user_id, known_at);
CREATE INDEX injections_by_age ON injections (tenant_id, known_at);

CREATE TABLE upkeep (                    -- a reference table: one row a task, whatever the tenant
    task          text PRIMARY KEY,
    claimed_until timestamptz,           -- the lease of whoever is at it; after a failure, when it is tried again
    finished_at   timestamptz,           -- the last time it succeeded
    attempts      integer NOT NULL DEFAULT 0,  -- that failed since
    last_error    text,
    did           jsonb                  -- rows by kind, the last time
);

-- The key of a user, session, turn or subject that was forgotten. Ids hold no control characters, so the joints are
-- unambiguous. It hides ids that cannot be guessed; whoever guesses one can see that it was erased.
CREATE FUNCTION erasure_key(p_tenant text, p_target text, p_id text) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT sha256(convert_to(p_tenant || chr(31) || p_target || chr(31) || p_id, 'UTF8'))
$$;

-- Erases records and facts, and all that was made of them: vectors, terms, earlier texts, evidence with its quotes,
-- the facts and episodes that rested on them, running summaries and narratives that may tell of them, and the log of
-- the prompts that showed them. The sessions concerned are to be summarised again from the first turn they lost.
-- Lock order: sessions, subjects, records, facts.
CREATE FUNCTION erase(
    p_tenant text, p_records uuid[], p_facts uuid[],
    p_history boolean,                   -- also the events of their history, not only the texts
    p_sessions text[] DEFAULT '{}',      -- also what rested on turns of these that were pruned
    OUT erased bigint,                   -- how many of p_records there were
    OUT counts jsonb                     -- rows by kind
) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    r          record;
    v_records  uuid[];  v_facts uuid[];  v_resting uuid[];  v_episodes uuid[];  v_subjects uuid[];  v_users text[];
    v_more     uuid[];  v_quotes uuid[];  v_sessions text[];  v_firsts bigint[];
    v_since    timestamptz;
    v_locked   boolean := false;
    n          bigint;
    n_turns bigint := 0;  n_episodes bigint := 0;  n_others bigint := 0;  n_vectors bigint := 0;  n_postings bigint := 0;
    n_facts bigint;  n_evidence bigint;  n_decisions bigint;  n_subjects bigint;  n_history bigint := 0;
    n_summaries bigint := 0;  n_narratives bigint;  n_injections bigint;
BEGIN
    p_records := coalesce(p_records, '{}');
    p_facts := coalesce(p_facts, '{}');
    PERFORM FROM sessions s WHERE s.tenant_id = p_tenant AND s.session_id IN (
        SELECT o.session_id FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (p_records))
    ORDER BY s.session_id FOR NO KEY UPDATE;

    -- Where each session loses its first turn. Later episodes of it go too: they are written again, from there on.
    SELECT array_agg(g.session_id), array_agg(g.first) INTO v_sessions, v_firsts FROM (
        SELECT t.session_id, min(t.seq) AS first FROM records t
        WHERE t.tenant_id = p_tenant AND t.seq IS NOT NULL AND t.id IN (
            SELECT unnest(p_records) UNION
            SELECT y.turn_id FROM episode_turns x
            JOIN episode_turns y ON y.tenant_id = p_tenant AND y.episode_id = x.episode_id
            WHERE x.tenant_id = p_tenant AND x.turn_id = ANY (p_records))
        GROUP BY t.session_id) g;
    v_episodes := ARRAY(
        SELECT DISTINCT e.episode_id FROM unnest(v_sessions, v_firsts) AS gap (session_id, first)
        JOIN records t ON t.tenant_id = p_tenant AND t.session_id = gap.session_id AND t.seq >= gap.first
        JOIN episode_turns e ON e.tenant_id = p_tenant AND e.turn_id = t.id);
    v_records := ARRAY(SELECT unnest(p_records) UNION SELECT unnest(v_episodes));

    v_subjects := '{}';
    LOOP                                 -- until nothing has come to rest on them while a lock was waited for
        v_quotes := ARRAY(SELECT x.evidence_id FROM evidence x
                          WHERE x.tenant_id = p_tenant AND (x.turn_id = ANY (v_records) OR x.gone_turn = ANY (p_records)
                                                            OR x.gone_session = ANY (p_sessions)));
        v_resting := ARRAY(SELECT DISTINCT x.fact_id FROM evidence x
                           WHERE x.tenant_id = p_tenant AND x.evidence_id = ANY (v_quotes));
        v_more := ARRAY(SELECT DISTINCT f.subject_id FROM facts f
                        WHERE f.tenant_id = p_tenant AND f.fact_id = ANY (p_facts || v_records || v_resting)
                          AND f.subject_id <> ALL (v_subjects));
        EXIT WHEN v_locked AND cardinality(v_more) = 0;
        PERFORM FROM subjects s WHERE s.tenant_id = p_tenant AND s.subject_id = ANY (v_more)
        ORDER BY s.subject_id FOR UPDATE;
        v_subjects := v_subjects || v_more;
        PERFORM FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (v_records) ORDER BY o.id FOR UPDATE;
        v_locked := true;
    END LOOP;
    SELECT count(*) INTO erased FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (p_records);

    -- A fact without evidence leads nowhere, also in another user's memory.
    DELETE FROM evidence x WHERE x.tenant_id = p_tenant AND x.evidence_id = ANY (v_quotes);
    GET DIAGNOSTICS n_evidence = ROW_COUNT;
    v_facts := ARRAY(
        SELECT f.fact_id FROM facts f WHERE f.tenant_id = p_tenant AND f.fact_id = ANY (p_facts || v_records)
        UNION
        SELECT f.fact_id FROM facts f
        WHERE f.tenant_id = p_tenant AND f.fact_id = ANY (v_resting)
          AND NOT EXISTS (SELECT FROM evidence x WHERE x.tenant_id = p_tenant AND x.fact_id = f.fact_id));
    v_records := ARRAY(SELECT unnest(v_records) UNION SELECT unnest(v_facts));

    SELECT array_agg(DISTINCT u.user_id), min(u.recorded_at) INTO v_users, v_since FROM (
        SELECT o.user_id, o.recorded_at FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (v_records)
        UNION ALL
        SELECT f.user_id, f.recorded_at FROM facts f WHERE f.tenant_id = p_tenant AND f.fact_id = ANY (v_facts)) u;

    -- What no summary of before the gap can hold stays; a worker that is at the session now writes nothing.
    FOR r IN SELECT gap.session_id, gap.first FROM unnest(v_sessions, v_firsts) AS gap (session_id, first)
    LOOP
        DELETE FROM running_summaries v
        WHERE v.tenant_id = p_tenant AND v.session_id = r.session_id AND v.through_seq >= r.first;
        GET DIAGNOSTICS n = ROW_COUNT;
        n_summaries := n_summaries + n;
        UPDATE sessions s
        SET summarised_through = least(s.summarised_through, r.first - 1),
            uncompacted = s.uncompacted OR s.summarised_through >= r.first,
            -- An error may quote what a model was given. What is left may do without it, and is tried at once.
            forming_until = NULL, forming_attempts = 0, forming_error = NULL, forming_retry_at = NULL,
            attempts = 0, last_error = NULL, retry_at = NULL
        WHERE s.tenant_id = p_tenant AND s.session_id = r.session_id;
    END LOOP;
    PERFORM lock_narrative(p_tenant, u.user_id) FROM (SELECT unnest(v_users) AS user_id ORDER BY 1) u;
    DELETE FROM narratives v
    WHERE v.tenant_id = p_tenant AND v.user_id = ANY (v_users) AND v.created_at >= v_since;
    GET DIAGNOSTICS n_narratives = ROW_COUNT;
    IF n_narratives > 0 THEN             -- somebody has to look at them, to write the story anew
        -- At the newest session that nobody has locked: subjects are held here, and sessions come before them. Whoever
        -- has the others writes to them, and a session that was written to is looked at anyway. A microsecond: whoever
        -- is past his last look leaves it on the list.
        UPDATE sessions s SET uncompacted = true, touched_at = s.touched_at + interval '1 microsecond'
        FROM unnest(v_users) AS u (user_id)
        CROSS JOIN LATERAL (
            SELECT o.session_id FROM sessions o WHERE o.tenant_id = p_tenant AND o.user_id = u.user_id
            ORDER BY o.created_at DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) newest
        WHERE s.tenant_id = p_tenant AND s.session_id = newest.session_id;
    END IF;
    DELETE FROM injections i
    WHERE i.tenant_id = p_tenant AND i.user_id = ANY (v_users) AND (
        i.turn_id = ANY (v_records)
        OR EXISTS (SELECT FROM jsonb_path_query(jsonb_build_array(i.items, i.frame), '$.** ? (@.type() == "string")') shown
                   WHERE (shown #>> '{}') IN (SELECT u::text FROM unnest(v_records) u)));
    GET DIAGNOSTICS n_injections = ROW_COUNT;

    FOR r IN
        DELETE FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (v_records)
        RETURNING o.id, o.user_key, o.terms, o.kind, o.embedding IS NOT NULL AS embedded
    LOOP
        DELETE FROM postings p
        WHERE p.tenant_id = p_tenant AND p.user_key = r.user_key AND p.term = ANY (r.terms) AND p.record_id = r.id;
        GET DIAGNOSTICS n = ROW_COUNT;
        n_postings := n_postings + n;
        n_vectors := n_vectors + r.embedded::integer;
        n_turns := n_turns + (r.kind = 'turn')::integer;
        n_episodes := n_episodes + (r.kind = 'episode')::integer;
        n_others := n_others + (r.kind NOT IN ('turn', 'episode', 'fact'))::integer;
    END LOOP;
    IF p_history THEN
        DELETE FROM record_history h WHERE h.tenant_id = p_tenant AND h.record_id = ANY (v_records);
        GET DIAGNOSTICS n_history = ROW_COUNT;
    ELSE
        UPDATE record_history h SET old_content = NULL, new_content = NULL
        WHERE h.tenant_id = p_tenant AND h.record_id = ANY (v_records);
    END IF;

    DELETE FROM decisions d WHERE d.tenant_id = p_tenant AND d.fact_id = ANY (v_facts);
    GET DIAGNOSTICS n_decisions = ROW_COUNT;
    DELETE FROM evidence x WHERE x.tenant_id = p_tenant AND x.fact_id = ANY (v_facts);
    GET DIAGNOSTICS n = ROW_COUNT;
    n_evidence := n_evidence + n;
    DELETE FROM facts f WHERE f.tenant_id = p_tenant AND f.fact_id = ANY (v_facts);
    GET DIAGNOSTICS n_facts = ROW_COUNT;
    UPDATE facts f SET superseded_by = NULL
    WHERE f.tenant_id = p_tenant AND f.subject_id = ANY (v_subjects) AND f.superseded_by = ANY (v_facts);
    UPDATE tombstones g SET fact_id = NULL
    WHERE g.tenant_id = p_tenant AND g.subject_id = ANY (v_subjects) AND g.fact_id = ANY (v_facts);
    -- A subject's name is a memory of it too. What was called wrong about it stays dead, and named.
    DELETE FROM subjects s
    WHERE s.tenant_id = p_tenant AND s.subject_id = ANY (v_subjects)
      AND NOT EXISTS (SELECT FROM facts f WHERE f.tenant_id = p_tenant AND f.subject_id = s.subject_id)
      AND NOT EXISTS (SELECT FROM tombstones g WHERE g.tenant_id = p_tenant AND g.subject_id = s.subject_id);
    GET DIAGNOSTICS n_subjects = ROW_COUNT;

    counts := jsonb_build_object(
        'turns', n_turns, 'episodes', n_episodes, 'other_records', n_others, 'vectors', n_vectors, 'postings', n_postings,
        'record_history', n_history, 'facts', n_facts, 'evidence', n_evidence, 'decisions', n_decisions,
        'subjects', n_subjects, 'running_summaries', n_summaries, 'narratives', n_narratives,
        'injections', n_injections);
END $$;

-- Deletes records (of the user, if one is named) with all that was made of them, and returns how many there were.
CREATE FUNCTION delete_records(p_tenant text, p_user text, p_ids uuid[]) RETURNS bigint
LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT e.erased FROM erase(
        p_tenant,
        CASE WHEN p_user IS NULL THEN p_ids ELSE ARRAY(
            SELECT o.id FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (p_ids) AND o.user_id = p_user) END,
        NULL, false) e
$$;

-- Deletes up to p_limit turns from before a time, of up to p_sessions sessions after p_after, and returns the last
-- session it is done with (NULL: none), and whether there may be more. Facts, tombstones and episodes stay; so do the
-- window of an open session, and what formation has still to read.
CREATE FUNCTION prune_turns(
    p_tenant text, p_after text, p_before timestamptz,
    p_window_turns bigint, p_window_tokens bigint,
    p_keep_evidence boolean, p_formed boolean, p_summarised boolean,
    p_sessions integer, p_limit integer,
    OUT last_session text, OUT turns bigint, OUT unlinked bigint, OUT more boolean
) LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    s      record;
    r      record;
    v_ids  uuid[];
    n      bigint;
BEGIN
    turns := 0;
    unlinked := 0;
    more := false;
    FOR s IN
        SELECT o.* FROM sessions o
        WHERE o.tenant_id = p_tenant AND o.session_id > p_after
        ORDER BY o.session_id LIMIT p_sessions
    LOOP
        more := true;
        EXIT WHEN turns >= p_limit;
        -- Locked, so that nothing new comes to rest on them; what somebody is at stays until the next time.
        v_ids := ARRAY(
            SELECT o.id FROM records o
            WHERE o.tenant_id = p_tenant AND o.session_id = s.session_id AND o.seq IS NOT NULL
              AND o.created_at < p_before
              AND NOT (p_keep_evidence AND EXISTS (
                  SELECT FROM evidence e WHERE e.tenant_id = p_tenant AND e.turn_id = o.id))
              AND (NOT p_formed OR o.seq <= s.formed_through)
              AND (NOT p_summarised OR o.seq <= s.summarised_through)
              AND (s.ended_at IS NOT NULL
                   OR (o.role NOT IN ('system', 'developer')
                       AND (o.seq <= s.last_seq - p_window_turns OR o.token_offset < s.token_total - p_window_tokens)
                       AND o.seq < s.last_seq
                       AND NOT (o.role = 'user' AND NOT EXISTS (
                           SELECT FROM records l WHERE l.tenant_id = p_tenant AND l.session_id = s.session_id
                             AND l.seq > o.seq AND l.role = 'user'))))
            ORDER BY o.seq LIMIT p_limit FOR UPDATE SKIP LOCKED);
        IF cardinality(v_ids) < p_limit THEN
            last_session := s.session_id;
        END IF;
        IF p_keep_evidence THEN
            v_ids := ARRAY(SELECT u.id FROM unnest(v_ids) AS u (id) WHERE NOT EXISTS (  -- it came before the lock
                SELECT FROM evidence e WHERE e.tenant_id = p_tenant AND e.turn_id = u.id));
        ELSE
            UPDATE evidence e SET turn_id = NULL,
                source = 'turn ' || e.turn_id || ' of session ' || s.session_id || ', pruned',
                gone_turn = e.turn_id, gone_session = s.session_id
            WHERE e.tenant_id = p_tenant AND e.turn_id = ANY (v_ids);
            GET DIAGNOSTICS n = ROW_COUNT;
            unlinked := unlinked + n;
        END IF;
        FOR r IN
            DELETE FROM records o WHERE o.tenant_id = p_tenant AND o.id = ANY (v_ids)
            RETURNING o.id, o.user_key, o.terms
        LOOP
            DELETE FROM postings p
            WHERE p.tenant_id = p_tenant AND p.user_key = r.user_key AND p.term = ANY (r.terms) AND p.record_id = r.id;
            turns := turns + 1;
        END LOOP;
        DELETE FROM record_history h WHERE h.tenant_id = p_tenant AND h.record_id = ANY (v_ids);
    END LOOP;
END $$;
