/** Flowable 7 and 8: hints of its jobs, and the execution endpoint. */
package dev.jobwire.flowable;
