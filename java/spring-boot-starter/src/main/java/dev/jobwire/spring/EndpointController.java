package dev.jobwire.spring;

import dev.jobwire.endpoint.ExecutionEndpoint;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** The path of the execution endpoint. */
@RestController
class EndpointController {
    private final ExecutionEndpoint endpoint;

    EndpointController(ExecutionEndpoint endpoint) {
        this.endpoint = endpoint;
    }

    @PostMapping("/jobwire/jobs/{id}/execute")
    ResponseEntity<String> execute(
            @PathVariable("id") String id,
            @RequestParam(name = "instance", required = false) String instance) {
        ExecutionEndpoint.Answer answer = endpoint.execute(id, instance);
        return ResponseEntity.status(answer.status())
                .contentType(MediaType.APPLICATION_JSON)
                .body(answer.json());
    }
}
