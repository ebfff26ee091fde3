/** Camunda 7: hints of its jobs. */
package dev.jobwire.camunda;
