package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.jobwire.tables.Columns;
import dev.jobwire.tables.EngineTables;
import dev.jobwire.tables.KeptConnection;
import dev.jobwire.tables.Locks;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;

class RunningJobsTest {
    /** The connections that were returned to the pool. */
    private final BlockingQueue<Object> returned = new LinkedBlockingQueue<>();

    private static <T> T proxy(Class<T> type, InvocationHandler calls) {
        return type.cast(Proxy.newProxyInstance(
                RunningJobsTest.class.getClassLoader(), new Class<?>[] {type}, calls));
    }

    /** Returns a source of connections. To return one of them to the pool is an error of the JVM. */
    private DataSource source() {
        DatabaseMetaData about = proxy(DatabaseMetaData.class, (self, called, with) -> "MariaDB");
        Connection connection = proxy(Connection.class, (self, called, with) -> {
            switch (called.getName()) {
                case "getMetaData":
                    return about;
                case "getAutoCommit":
                    return true;
                case "getTransactionIsolation":
                    return Connection.TRANSACTION_READ_COMMITTED;
                case "setAutoCommit":
                    if (with[0].equals(true)) {
                        returned.add(self.getClass());
                        throw new NoClassDefFoundError("a class is missing");
                    }
                    return null;
                default:
                    return null;
            }
        });
        return proxy(DataSource.class, (self, called, with) -> connection);
    }

    @Test
    void anErrorEndsNoRenewals() throws Exception {
        EngineTables tables = new EngineTables(source(), "", Columns.ofFlowable());
        try (RunningJobs running =
                new RunningJobs(new Locks(tables), new KeptConnection(tables))) {
            for (int turn = 1; turn <= 2; turn++) {
                assertTrue(running.enter("7", "jobwire:1:" + turn, 60_000));
                running.leave("jobwire:1:" + turn);
                assertTrue(returned.poll(20, TimeUnit.SECONDS) != null, "turn " + turn);
            }
        }
    }
}
