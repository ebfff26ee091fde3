package jobwire.engines.flowable7;

import org.flowable.cmmn.api.CmmnRuntimeService;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** Starts the case {@code case} ({@code POST /test/case}), where the engine of cases is on. */
@RestController
@ConditionalOnProperty(value = "flowable.cmmn.enabled", havingValue = "true")
class CaseController {
    private final CmmnRuntimeService cases;

    CaseController(CmmnRuntimeService cases) {
        this.cases = cases;
    }

    @PostMapping("/test/case")
    String start() {
        return cases.createCaseInstanceBuilder().caseDefinitionKey("case").start().getId();
    }
}
