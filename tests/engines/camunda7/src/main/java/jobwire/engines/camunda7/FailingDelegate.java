package jobwire.engines.camunda7;

import org.camunda.bpm.engine.delegate.DelegateExecution;
import org.camunda.bpm.engine.delegate.JavaDelegate;

/** The work of a task that always fails, as a class of the engine's. */
public class FailingDelegate implements JavaDelegate {
    @Override
    public void execute(DelegateExecution execution) {
        throw new IllegalStateException("as wished");
    }
}
