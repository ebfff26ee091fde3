package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.jobwire.tables.Columns;
import dev.jobwire.tables.EngineTables;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Requests that are refused before the engine or its database is asked. */
class JobEndpointTest {
    private final JobEndpoint endpoint = new JobEndpoint(answering(
            JobEngine.class, "tables", new EngineTables(source(), "", Columns.ofFlowable())));

    /** Returns an object of which only this method may be called. */
    private static <T> T answering(Class<T> type, String method, Object answer) {
        return type.cast(Proxy.newProxyInstance(
                JobEndpointTest.class.getClassLoader(), new Class<?>[] {type}, (self, called, how) -> {
                    if (called.getName().equals("close")) {
                        return null;
                    }
                    assertEquals(method, called.getName());
                    return answer;
                }));
    }

    private static DataSource source() {
        DatabaseMetaData about =
                answering(DatabaseMetaData.class, "getDatabaseProductName", "MariaDB");
        Connection connection = answering(Connection.class, "getMetaData", about);
        return answering(DataSource.class, "getConnection", connection);
    }

    @AfterEach
    void close() {
        endpoint.close();
    }

    private void refused(String operation, String body, String said) {
        InputStream stream = new ByteArrayInputStream(body.getBytes(StandardCharsets.UTF_8));
        ExecutionEndpoint.Answer answer = endpoint.answer(operation, stream);
        assertEquals(400, answer.status(), answer.json());
        assertTrue(answer.json().contains(said), answer.json());
    }

    @Test
    void onlyLocksOfNodesAreRunExtendedAndEnded() {
        String lock = "{\"id\":\"7\",\"owner\":\"the engine\",\"lease\":1000}";
        refused("run", lock, "`owner`");
        refused("renew", "{\"lease\":1000,\"held\":[" + lock + "]}", "`owner`");
        refused("settle", "{\"held\":[" + lock + "]}", "`owner`");
    }

    @Test
    void aListNeedsALease() throws Exception {
        String list = "{\"node\":\"0198c0de-7777-7000-8000-000000000001\",\"at_once\":1,"
                + "\"within\":1000,\"jobs\":[{\"id\":\"7\",\"fence\":1}]}";
        InputStream body = new ByteArrayInputStream(list.getBytes(StandardCharsets.UTF_8));
        ExecutionEndpoint.Answer answer = endpoint
                .runList(body, () -> {
                    throw new AssertionError("the answer has begun");
                })
                .orElseThrow();
        assertEquals(400, answer.status());
        assertTrue(answer.json().contains("`lease`"), answer.json());
    }

    @Test
    void aNodeIsNoPattern() {
        refused("held", "{\"node\":\"%\",\"lease\":1000}", "`node`");
        refused("lock", "{\"node\":\"a:1\",\"fence\":1,\"lease\":1000,\"jobs\":[]}", "`node`");
        refused("resign", "{\"node\":\"_\"}", "`node`");
    }

    @Test
    void aLongBodyIsNotReadToItsEnd() {
        int[] read = {0};
        InputStream endless = new InputStream() {
            @Override
            public int read() {
                read[0]++;
                return ' ';
            }
        };
        assertEquals(400, endpoint.answer("clock", endless).status());
        assertEquals(4 * JobEndpoint.LONGEST_BODY + 1, read[0]);
        refused("clock", " ".repeat(JobEndpoint.LONGEST_BODY + 1), "characters");
    }
}
