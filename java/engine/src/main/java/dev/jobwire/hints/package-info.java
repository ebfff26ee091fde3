/**
 * Publishes hints of an engine's jobs to RabbitMQ or Kafka after the commit of the jobs.
 *
 * <p>The modules of the engines call {@link dev.jobwire.hints.HintPublisher} after each commit. The
 * wire format is described in docs/reference/hints.md.
 */
package dev.jobwire.hints;
