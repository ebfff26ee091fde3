package jobwire.engines.spring;

import jakarta.servlet.http.HttpServletRequest;
import java.util.Map;
import jobwire.engines.Answer;
import jobwire.engines.Requests;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** Passes requests to {@link Requests}. */
@RestController
class TestController {
    private final Requests requests;

    TestController(Requests requests) {
        this.requests = requests;
    }

    @RequestMapping("/test/**")
    ResponseEntity<String> any(
            HttpServletRequest request, @RequestParam Map<String, String> parameters) {
        Answer answer =
                requests.answer(request.getMethod(), request.getRequestURI(), parameters);
        return ResponseEntity.status(answer.status())
                .contentType(MediaType.APPLICATION_JSON)
                .body(answer.json());
    }
}
