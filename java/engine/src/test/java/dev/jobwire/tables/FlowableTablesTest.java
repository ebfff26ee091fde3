package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.sql.SQLException;
import java.time.Instant;
import java.util.List;
import java.util.Set;
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

    @Test
    void anInstanceWithAnOwnerAndWithoutATimeIsRescued() throws SQLException {
        database.job("instance", "job", null, "");
        database.change("UPDATE ACT_RU_EXECUTION SET LOCK_OWNER_ = 'engine'");
        Rescue.Rescued rescued = new Rescue(database.tables()).rescue(10);
        assertEquals(List.of("job"), rescued.ready().stream().map(JobRow::id).toList());
        assertEquals(0, database.number(
                "SELECT COUNT(*) FROM ACT_RU_EXECUTION WHERE LOCK_OWNER_ IS NOT NULL"));
    }

    private List<JobRow> lock(Set<String> tenants, Set<String> categories) {
        LockTerms terms = new LockTerms(NODE, 7, 30_000, tenants, categories);
        List<Locks.Wanted> hint = List.of(new Locks.Wanted("gone", "instance"));
        return new Locks(database.tables()).lock(hint, terms).jobs();
    }

    private void unlock() throws SQLException {
        database.change("UPDATE ACT_RU_JOB SET LOCK_OWNER_ = NULL, LOCK_EXP_TIME_ = NULL");
    }

    private void assertLocks(String id, Set<String> tenants, Set<String> categories)
            throws SQLException {
        List<JobRow> locked = lock(tenants, categories);
        assertEquals(id == null ? List.of() : List.of(id), locked.stream().map(JobRow::id).toList());
        unlock();
    }

    private void elder(int jobs) throws SQLException {
        for (int number = 0; number < jobs; number++) {
            database.job("instance", "elder-%03d".formatted(number), "slow", "one");
        }
    }

    @Test
    void noNumberOfElderJobsThatANodeDoesNotTakeHidesAYoungerOne() throws SQLException {
        elder(150);
        database.job("instance", "job", "fast", "one");
        database.job("instance", "other", "fast", "two");
        database.job("instance", "plain", "", "");
        assertLocks("elder-000", null, null);
        assertLocks("job", null, Set.of("fast"));
        assertLocks("other", Set.of("two"), Set.of("fast", "faster"));
        assertLocks("plain", Set.of("three"), Set.of());
        database.change("DELETE FROM ACT_RU_JOB WHERE ID_ = 'plain'");
        assertLocks(null, Set.of("three"), null);
    }

    /** Each may need another node. */
    @Test
    void theFirstJobOfEachCategoryIsReported() throws SQLException {
        elder(150);
        database.job("instance", "fast", "fast", "");
        database.job("instance", "plain", null, "");
        database.job("instance", "younger", "", "");
        Locks.Held held = new Locks.Held("gone", OWNER, "instance");
        List<JobRow> ready = new Settlement(database.tables())
                .settle(List.of(new Settlement.Ending(held, false)), null)
                .ready();
        assertEquals(
                List.of("elder-000", "fast", "plain"), ready.stream().map(JobRow::id).toList());
        database.change("DELETE FROM ACT_RU_JOB WHERE CATEGORY_ IS NOT NULL AND CATEGORY_ <> ''");
        ready = new Settlement(database.tables())
                .settle(List.of(new Settlement.Ending(held, false)), null)
                .ready();
        assertEquals(List.of("plain"), ready.stream().map(JobRow::id).toList());
    }

    @Test
    void afterTheGreatestRevisionComesOne() throws SQLException {
        database.job("instance", "job", null, "");
        database.change("UPDATE ACT_RU_JOB SET REV_ = ?", Integer.MAX_VALUE);
        List<JobRow> locked = lock(null, null);
        assertEquals(List.of(1), locked.stream().map(JobRow::revision).toList());
        assertEquals(1, database.number("SELECT REV_ FROM ACT_RU_JOB"));
        unlock();
        assertEquals(2, lock(null, null).get(0).revision());
    }
}
