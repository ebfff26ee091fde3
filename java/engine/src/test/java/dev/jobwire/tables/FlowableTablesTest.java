package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.sql.SQLException;
import java.time.Instant;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class FlowableTablesTest {
    private static final String NODE = "0198c0de-7777-7000-8000-000000000001";
    private static final String OWNER = EngineTables.OURS + NODE + ":7";
    private static final String LOCK =
            "UPDATE ACT_RU_JOB SET LOCK_OWNER_ = ?, LOCK_EXP_TIME_ = ? WHERE ID_ = 'job'";
    private static final String LOCKED =
            "SELECT COUNT(*) FROM ACT_RU_JOB WHERE LOCK_OWNER_ IS NOT NULL";
    private static final String PROPERTIES = "SELECT COUNT(*) FROM ACT_GE_PROPERTY";

    private FlowableTables database;

    @BeforeEach
    void create() throws SQLException {
        database = new FlowableTables();
        database.instance("instance");
    }

    @AfterEach
    void close() throws SQLException {
        database.close();
    }

    private Release.Released release() {
        return new Release(database.tables()).all();
    }

    /** They name the nodes that live, which the repeated release checks. */
    @Test
    void thePropertiesStayUntilNoLockIsLeft() throws SQLException {
        database.job("instance", "job", null, "");
        for (String name : List.of("jobwire.leader", "schema.version")) {
            database.change("INSERT INTO ACT_GE_PROPERTY VALUES (?, 'x', 1)", name);
        }
        database.change(LOCK, OWNER, Instant.now().plusSeconds(3_600));
        assertEquals(new Release.Released(0, 1), release());
        assertEquals(2, database.number(PROPERTIES));
        database.change(LOCK, OWNER, Instant.now().minusSeconds(60));
        assertEquals(new Release.Released(1, 0), release());
        assertEquals(1, database.number(PROPERTIES));
        assertEquals(0, database.number(LOCKED));
    }
}
