/**
 * The execution endpoint, by which a node lets the engine run a job. Its contract is
 * docs/reference/engine-endpoint.md.
 */
package dev.jobwire.endpoint;
