package dev.jobwire.spring;

import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.get;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.post;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.status;

import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobRunner;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.springframework.http.MediaType;
import org.springframework.test.web.servlet.MockMvc;
import org.springframework.test.web.servlet.setup.MockMvcBuilders;

class EndpointControllerTest {
    private static final JobRunner RUNNER = (job, lock) -> Optional.of(ExecutedJob.gone());
    private static final String ONE = "/jobwire/jobs/17/execute";

    private final MockMvc http = MockMvcBuilders
            .standaloneSetup(
                    new EndpointController(new ExecutionEndpoint(RUNNER), Optional.empty()))
            .build();

    /** Nodes send this type with each request, also without a body. */
    @Test
    void aRequestOfANodeIsTaken() throws Exception {
        http.perform(post(ONE).contentType(MediaType.APPLICATION_JSON)).andExpect(status().isOk());
        // The body is missing.
        http.perform(post("/jobwire/jobs/execute").contentType(MediaType.APPLICATION_JSON))
                .andExpect(status().isBadRequest());
        http.perform(post("/jobwire/v1/delete").contentType("application/json;charset=UTF-8"))
                .andExpect(status().isNotFound());
    }

    /** A browser sends these types for a page of another origin. */
    @Test
    void aRequestThatAForeignPageCanSendIsRefused() throws Exception {
        String[] paths = {
            ONE, "/jobwire/jobs/execute", "/jobwire/v1/run-list", "/jobwire/v1/delete",
        };
        for (String path : paths) {
            for (String type : new String[] {
                "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
            }) {
                http.perform(post(path).contentType(type).content("{\"id\":\"17\"}"))
                        .andExpect(status().isUnsupportedMediaType());
            }
            http.perform(post(path).content("{\"id\":\"17\"}"))
                    .andExpect(status().isUnsupportedMediaType());
        }
    }

    /** The doctor recognizes the endpoint by this answer. */
    @Test
    void aGetOfAnExecutionIsNotAllowed() throws Exception {
        http.perform(get(ONE)).andExpect(status().isMethodNotAllowed());
        http.perform(get(ONE).contentType(MediaType.APPLICATION_JSON))
                .andExpect(status().isMethodNotAllowed());
    }
}
