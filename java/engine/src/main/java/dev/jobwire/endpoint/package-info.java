/**
 * The execution endpoint. Over it, nodes make the engine run jobs. Its contract is
 * docs/reference/engine-endpoint.md.
 */
package dev.jobwire.endpoint;
