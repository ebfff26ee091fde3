/**
 * The tables of an engine over JDBC, with statements that MySQL, MariaDB, Oracle, SQL Server,
 * PostgreSQL and H2 understand.
 *
 * <p>All statements keep these rules. {@code REV_} of a job changes with its lock, and never while
 * the lock is held. One job of an instance is locked at a time. Only unlocked rows are locked. Rows
 * of instances are locked before rows of jobs, and no statement waits for a row that another
 * transaction has locked.
 */
package dev.jobwire.tables;
