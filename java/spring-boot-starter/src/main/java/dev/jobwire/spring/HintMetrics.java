package dev.jobwire.spring;

import dev.jobwire.hints.DropReason;
import dev.jobwire.hints.HintPublisher;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.util.List;

/** Reports the counts of hints as metrics, with the lane as a tag. */
record HintMetrics(List<HintPublisher> publishers) implements MeterBinder {
    @Override
    public void bindTo(MeterRegistry registry) {
        for (HintPublisher hints : publishers) {
            FunctionCounter.builder(
                            "jobwire.engine.hints.published",
                            hints.counts(),
                            counts -> counts.published())
                    .description("Hints that the broker has confirmed.")
                    .tag("lane", hints.lane())
                    .register(registry);
            for (DropReason reason : DropReason.values()) {
                FunctionCounter.builder(
                                "jobwire.engine.hints.dropped",
                                hints.counts(),
                                counts -> counts.dropped(reason))
                        .description("Hints that were not published. The sweeper finds their jobs.")
                        .tag("lane", hints.lane())
                        .tag("reason", reason.label())
                        .register(registry);
            }
            Gauge.builder("jobwire.engine.hints.waiting", hints, HintPublisher::waiting)
                    .description("Hints that wait for the broker.")
                    .tag("lane", hints.lane())
                    .register(registry);
        }
    }
}
