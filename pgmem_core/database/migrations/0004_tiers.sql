-- Semantic, execution, episodic and narrative memory, and what keeps them true.

CREATE TABLE subjects (                  -- its row is the lock of all facts about it
    tenant_id   text NOT NULL,
    subject_id  uuid NOT NULL,           -- derived from kind, identifier and owner: the same wherever it is named
    kind        text NOT NULL,
    identifier  text NOT NULL,
    owner       text NOT NULL DEFAULT '',  -- '': of the whole tenant; else the user whose talk it was learnt from
    last_change timestamptz NOT NULL DEFAULT '-infinity',  -- times under the lock never go back
    PRIMARY KEY (tenant_id, subject_id)
);

CREATE TABLE facts (
    tenant_id         text NOT NULL,
    fact_id           uuid NOT NULL,
    subject_id        uuid NOT NULL,
    user_id           text NOT NULL,     -- whose memory it is in
    session_id        text,              -- where it was learnt, if in a session
    predicate         text NOT NULL,
    value             jsonb NOT NULL,
    value_key         bytea NOT NULL CHECK (octet_length(value_key) = 32),
    single_valued     boolean NOT NULL,
    authority         text NOT NULL CHECK (authority IN ('user', 'system', 'tool', 'agent')),
    confidence        real NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    status            text NOT NULL CHECK (status IN ('accepted', 'contested', 'rejected')),
    valid_from        timestamptz NOT NULL DEFAULT '-infinity',
    valid_to          timestamptz NOT NULL DEFAULT 'infinity',
    recorded_at       timestamptz NOT NULL,
    superseded_at     timestamptz NOT NULL DEFAULT 'infinity',
    superseded_by     uuid,
    ended_as          text CHECK (ended_as IN ('changed', 'wrong', 'retracted', 'ended', 'settled')),
    last_confirmed_at timestamptz NOT NULL,
    confirmations     integer NOT NULL DEFAULT 0,
    expires_at        timestamptz,
    PRIMARY KEY (tenant_id, fact_id),
    FOREIGN KEY (tenant_id, subject_id) REFERENCES subjects (tenant_id, subject_id),
    CHECK (valid_from < valid_to),
    CHECK (recorded_at < superseded_at)
);
-- At most one current, open-ended, uncontested value of a single-valued predicate; and each value once.
CREATE UNIQUE INDEX facts_one_value ON facts (tenant_id, subject_id, predicate)
    WHERE single_valued AND status = 'accepted' AND superseded_at = 'infinity' AND valid_to = 'infinity';
CREATE UNIQUE INDEX facts_each_value_once ON facts (tenant_id, subject_id, predicate, value_key)
    WHERE superseded_at = 'infinity' AND valid_to = 'infinity';
CREATE INDEX facts_of_subject ON facts (tenant_id, subject_id, predicate, recorded_at);
CREATE INDEX facts_of_user ON facts (tenant_id, user_id, recorded_at);

CREATE TABLE evidence (
    tenant_id   text NOT NULL,
    evidence_id uuid NOT NULL,
    fact_id     uuid NOT NULL,
    turn_id     uuid,                    -- a turn of the same tenant …
    source      text,                    -- … or somebody else's record
    quote       text,
    recorded_at timestamptz NOT NULL,
    gone_turn    uuid,                   -- the source is a turn that was pruned, or not imported …
    gone_session text,                   -- … of this session: who forgets it forgets the quote
    PRIMARY KEY (tenant_id, evidence_id),
    FOREIGN KEY (tenant_id, fact_id) REFERENCES facts (tenant_id, fact_id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, turn_id) REFERENCES records (tenant_id, id) ON DELETE CASCADE,
    CHECK ((turn_id IS NULL) <> (source IS NULL))
);
CREATE INDEX evidence_of_fact ON evidence (tenant_id, fact_id);
CREATE INDEX evidence_of_turn ON evidence (tenant_id, turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX evidence_of_gone_turn ON evidence (tenant_id, gone_turn) WHERE gone_turn IS NOT NULL;
CREATE INDEX evidence_of_gone_session ON evidence (tenant_id, gone_session) WHERE gone_session IS NOT NULL;

CREATE TABLE tombstones (                -- values called wrong: they stay dead
    tenant_id  text NOT NULL,
    subject_id uuid NOT NULL,
    predicate  text NOT NULL,
    value_key  bytea NOT NULL CHECK (octet_length(value_key) = 32),
    authority  text NOT NULL CHECK (authority IN ('user', 'system', 'tool', 'agent')),
    hits       bigint NOT NULL DEFAULT 0,  -- how often something tried to bring it back
    created_at timestamptz NOT NULL,
    last_hit_at timestamptz,
    fact_id    uuid,                     -- the row it was, if it had been claimed
    lifted_at  timestamptz,              -- when it was brought back, explicitly
    PRIMARY KEY (tenant_id, subject_id, predicate, value_key),
    FOREIGN KEY (tenant_id, subject_id) REFERENCES subjects (tenant_id, subject_id)
);

CREATE TABLE decisions (                 -- what a person decided in review
    tenant_id   text NOT NULL,
    decision_id uuid NOT NULL,
    fact_id     uuid NOT NULL,
    decision    text NOT NULL CHECK (decision IN ('confirm', 'reject', 'reopen')),
    decided_by  text NOT NULL,
    note        text,
    decided_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, decision_id)
);
CREATE INDEX decisions_of_fact ON decisions (tenant_id, fact_id, decided_at);

CREATE TABLE execution (                 -- what the agent is doing right now; never leaves its session
    tenant_id  text NOT NULL,
    session_id text NOT NULL,
    key        text NOT NULL,
    value      jsonb NOT NULL,
    set_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    PRIMARY KEY (tenant_id, session_id, key),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, session_id) ON DELETE CASCADE
);

CREATE TABLE narratives (
    tenant_id  text NOT NULL,
    user_id    text NOT NULL,
    version    integer NOT NULL,
    content    text NOT NULL,
    seen_through timestamptz NOT NULL,   -- newest episode and fact it was written from
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, user_id, version)
);

CREATE TABLE injections (                -- what an agent was shown; written off the turn, prunable
    tenant_id     text NOT NULL,
    injection_id  uuid NOT NULL,
    session_id    text NOT NULL,
    user_id       text NOT NULL,
    turn_id       uuid NOT NULL,         -- the query's turn
    known_at      timestamptz NOT NULL,  -- the moment of the read
    items         jsonb NOT NULL,        -- ids, kinds, scores and their parts; external state by hash and length only
    frame         jsonb NOT NULL,        -- the window's turns and the budgets: what else the prompt was made of
    prefix_hash   text NOT NULL,
    messages_hash text NOT NULL,
    token_count   integer NOT NULL,
    PRIMARY KEY (tenant_id, injection_id)
);
CREATE INDEX injections_of_session ON injections (tenant_id, session_id, known_at);
CREATE INDEX injections_of_turn ON injections (tenant_id, turn_id, known_at);

CREATE TABLE erasures (                  -- that something was forgotten, not what it was
    tenant_id  text NOT NULL,
    erasure_id uuid NOT NULL,
    target     text NOT NULL CHECK (target IN ('user', 'session', 'subject', 'turn')),
    key_hash   bytea NOT NULL,           -- whoever knows the id can prove the erasure; see erasure_key
    counts     jsonb NOT NULL,           -- rows erased, by kind
    erased_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, erasure_id)
);

CREATE TABLE erased_keys (               -- users, sessions, turns and subjects that an older export may not bring back
    tenant_id  text NOT NULL,
    key_hash   bytea NOT NULL,
    erased_at  timestamptz NOT NULL,     -- what was said until then stays away
    PRIMARY KEY (tenant_id, key_hash)
);

ALTER TABLE sessions
    ADD COLUMN formed_through     bigint NOT NULL DEFAULT 0,  -- facts extracted
    ADD COLUMN summarised_through bigint NOT NULL DEFAULT 0,  -- in an episode, and in the running summary
    ADD COLUMN prefix_at          timestamptz NOT NULL DEFAULT clock_timestamp();  -- what the stable prefix knows

CREATE VIEW pending_work AS              -- what waits for its vectors, and whose facts or summaries failed
    SELECT tenant_id, session_id, user_id,
           CASE WHEN dirty THEN last_seq - embedded_through ELSE 0 END AS turns_behind,
           attempts, last_error, retry_at, claimed_until, forming_attempts, forming_error, forming_retry_at
    FROM sessions WHERE dirty OR forming_attempts > 0;

CREATE VIEW pending_formation AS         -- what no extractor has read; all of it where there is none
    SELECT tenant_id, session_id, user_id, last_seq - formed_through AS turns_behind, ended_at IS NOT NULL AS ended,
           forming_attempts, forming_error, forming_retry_at, forming_until
    FROM sessions WHERE unformed;
