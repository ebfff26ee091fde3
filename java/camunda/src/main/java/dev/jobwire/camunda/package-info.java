/** Camunda 7: hints of its jobs, and the execution endpoint. */
package dev.jobwire.camunda;
