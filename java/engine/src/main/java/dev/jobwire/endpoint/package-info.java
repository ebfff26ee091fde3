/**
 * The execution endpoint: the nodes ask the engine to run a job. docs/reference/engine-endpoint.md
 * is its contract.
 */
package dev.jobwire.endpoint;
