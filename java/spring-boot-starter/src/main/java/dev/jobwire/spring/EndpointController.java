package dev.jobwire.spring;

import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobEndpoint;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/**
 * The paths of the endpoint. A browser sends no request of the type application/json for a page of
 * another origin without asking first. So the changing paths take no other type.
 */
@RestController
class EndpointController {
    private static final String JSON = MediaType.APPLICATION_JSON_VALUE;

    private final ExecutionEndpoint execution;
    private final Optional<JobEndpoint> jobs;

    EndpointController(ExecutionEndpoint execution, Optional<JobEndpoint> jobs) {
        this.execution = execution;
        this.jobs = jobs;
    }

    @PostMapping(path = "/jobwire/jobs/{id}/execute", consumes = JSON)
    ResponseEntity<String> execute(
            @PathVariable("id") String id,
            @RequestParam(name = "instance", required = false) String instance,
            @RequestParam(name = "owner", required = false) String owner) {
        return response(execution.execute(id, instance, owner));
    }

    @PostMapping(path = "/jobwire/jobs/execute", consumes = JSON)
    void executeAll(
            InputStream body,
            @RequestParam(name = "instance", required = false) String instance,
            HttpServletResponse response)
            throws IOException {
        refuse(response, execution.executeAll(body, instance, () -> lines(response)));
    }

    @PostMapping(path = "/jobwire/v1/run-list", consumes = JSON)
    void runList(InputStream body, HttpServletResponse response) throws IOException {
        if (jobs.isEmpty()) {
            response.setStatus(HttpServletResponse.SC_NOT_FOUND);
        } else {
            refuse(response, jobs.get().runList(body, () -> lines(response)));
        }
    }

    private static OutputStream lines(HttpServletResponse response) throws IOException {
        response.setContentType(MediaType.APPLICATION_NDJSON_VALUE);
        return response.getOutputStream();
    }

    private static void refuse(
            HttpServletResponse response, Optional<ExecutionEndpoint.Answer> refused)
            throws IOException {
        if (refused.isPresent()) {
            response.setStatus(refused.get().status());
            response.setContentType(MediaType.APPLICATION_JSON_VALUE);
            response.getOutputStream()
                    .write(refused.get().json().getBytes(StandardCharsets.UTF_8));
        }
    }

    @PostMapping(path = "/jobwire/v1/{operation}", consumes = JSON)
    ResponseEntity<String> operate(
            @PathVariable("operation") String operation,
            InputStream body) {
        return response(jobs.map(endpoint -> endpoint.answer(operation, body))
                .orElseGet(() -> execution.operate(operation, body)));
    }

    @GetMapping("/jobwire/scope")
    ResponseEntity<String> scope() {
        return response(execution.scope(true, jobs.isPresent()));
    }

    private static ResponseEntity<String> response(ExecutionEndpoint.Answer answer) {
        return ResponseEntity.status(answer.status())
                .contentType(MediaType.APPLICATION_JSON)
                .body(answer.json());
    }
}
