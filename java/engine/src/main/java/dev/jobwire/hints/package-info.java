/**
 * Hints of an engine's jobs: published to RabbitMQ or Kafka after the commit that created them.
 *
 * <p>{@link dev.jobwire.hints.HintPublisher} is the centre. The modules of the engines call it
 * after each commit. The wire format is the one of docs/reference/hints.md.
 */
package dev.jobwire.hints;
