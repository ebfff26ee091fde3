package jobwire.engines.spring;

import static org.springframework.security.config.Customizer.withDefaults;

import jobwire.engines.Settings;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.security.config.annotation.web.builders.HttpSecurity;
import org.springframework.security.config.http.SessionCreationPolicy;
import org.springframework.security.core.userdetails.User;
import org.springframework.security.core.userdetails.UserDetailsService;
import org.springframework.security.provisioning.InMemoryUserDetailsManager;
import org.springframework.security.web.SecurityFilterChain;
import org.springframework.security.web.servlet.util.matcher.PathPatternRequestMatcher;

/** Basic authentication for all requests but those of tests. */
@Configuration
class Security {
    private static final PathPatternRequestMatcher OF_TESTS =
            PathPatternRequestMatcher.withDefaults().matcher("/test/**");

    @Bean
    UserDetailsService users(Settings settings) {
        return new InMemoryUserDetailsManager(User.withUsername(settings.user())
                .password("{noop}" + settings.password())
                .roles("USER")
                .build());
    }

    @Bean
    SecurityFilterChain filters(HttpSecurity http) throws Exception {
        return http.csrf(csrf -> csrf.disable())
                .sessionManagement(
                        sessions -> sessions.sessionCreationPolicy(SessionCreationPolicy.STATELESS))
                .httpBasic(withDefaults())
                .authorizeHttpRequests(requests -> requests
                        .requestMatchers(OF_TESTS)
                        .permitAll()
                        .anyRequest()
                        .authenticated())
                .build();
    }
}
