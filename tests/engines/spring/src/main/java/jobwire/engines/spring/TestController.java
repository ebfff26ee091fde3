package jobwire.engines.spring;

import java.util.Map;
import jobwire.engines.Answer;
import jobwire.engines.Requests;
import org.springframework.http.HttpMethod;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.servlet.support.ServletUriComponentsBuilder;

/**
 * Passes requests to {@link Requests}. Names no class of the servlet API, whose package Spring Boot 3
 * has changed.
 */
@RestController
class TestController {
    private final Requests requests;

    TestController(Requests requests) {
        this.requests = requests;
    }

    @RequestMapping("/test/**")
    ResponseEntity<String> any(
            HttpMethod method, @RequestParam Map<String, String> parameters) {
        String path = ServletUriComponentsBuilder.fromCurrentRequest().build().getPath();
        Answer answer = requests.answer(method.name(), path, parameters);
        return ResponseEntity.status(answer.status())
                .contentType(MediaType.APPLICATION_JSON)
                .body(answer.json());
    }
}
