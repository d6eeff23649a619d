-- What compaction writes: episodes know their turns, a session's running summary keeps its versions.

CREATE TABLE episode_turns (             -- which turns an episode tells of
    tenant_id  text NOT NULL,
    episode_id uuid NOT NULL,
    turn_id    uuid NOT NULL,
    PRIMARY KEY (tenant_id, episode_id, turn_id),
    FOREIGN KEY (tenant_id, episode_id) REFERENCES records (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, turn_id) REFERENCES records (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX episodes_of_turn ON episode_turns (tenant_id, turn_id);
CREATE INDEX records_episodes ON records (tenant_id, user_id, recorded_at) WHERE kind = 'episode';

CREATE TABLE running_summaries (         -- the story of a session so far; the newest version stands
    tenant_id   text NOT NULL,
    session_id  text NOT NULL,
    version     integer NOT NULL,
    content     text NOT NULL,
    through_seq bigint NOT NULL,         -- the last turn it tells of
    token_count integer NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, session_id, version),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, session_id) ON DELETE CASCADE
);

ALTER TABLE sessions
    -- The last turn that a summary was asked for, or told of: it stays where summarised_through falls behind it, so
    -- that what was summarised once is summarised again.
    ADD COLUMN compact_through bigint NOT NULL DEFAULT 0;

ALTER TABLE narratives
    -- The newest episodes it was written from. Times are taken before a commit, so an episode may appear with a time
    -- that seen_through has passed; these ids tell it from one that was seen.
    ADD COLUMN seen_episodes uuid[] NOT NULL DEFAULT '{}';

-- Makes a transaction that takes a user's narratives away, and one that writes the next, go one after the other.
CREATE FUNCTION lock_narrative(p_tenant text, p_user text) RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('pgmem narrative ' || p_tenant || chr(31) || p_user, 0))
$$;

-- Takes back what was told of turns that stay but do not say any more what they said: their episodes and the later
-- ones of their sessions, to be written again. The caller holds the sessions' rows.
CREATE FUNCTION retell(p_tenant text, p_turns uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    s record;
BEGIN
    FOR s IN
        SELECT o.session_id, min(o.seq) AS first FROM episode_turns x
        JOIN episode_turns y ON y.tenant_id = p_tenant AND y.episode_id = x.episode_id
        JOIN records o ON o.tenant_id = p_tenant AND o.id = y.turn_id
        WHERE x.tenant_id = p_tenant AND x.turn_id = ANY (p_turns)
        GROUP BY o.session_id ORDER BY o.session_id
    LOOP
        PERFORM erase(p_tenant, ARRAY(
            SELECT DISTINCT e.episode_id FROM episode_turns e
            JOIN records t ON t.tenant_id = p_tenant AND t.id = e.turn_id
            WHERE e.tenant_id = p_tenant AND t.session_id = s.session_id AND t.seq >= s.first), NULL, false);
        DELETE FROM running_summaries v
        WHERE v.tenant_id = p_tenant AND v.session_id = s.session_id AND v.through_seq >= s.first;
        UPDATE sessions SET summarised_through = least(summarised_through, s.first - 1), uncompacted = true
        WHERE tenant_id = p_tenant AND session_id = s.session_id;
    END LOOP;
END $$;
