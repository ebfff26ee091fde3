/**
 * Auto-configuration of hints and the execution endpoint for Spring Boot 3. An application sets
 * {@code jobwire.broker-url}, and {@code jobwire.engine-endpoint} for the endpoint.
 */
package dev.jobwire.spring;
