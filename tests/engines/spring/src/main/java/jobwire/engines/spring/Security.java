package jobwire.engines.spring;

import static org.springframework.security.config.Customizer.withDefaults;

import jobwire.engines.Settings;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.security.config.annotation.web.builders.HttpSecurity;
import org.springframework.security.config.http.SessionCreationPolicy;
import org.springframework.security.core.userdetails.User;
import org.springframework.security.core.userdetails.UserDetailsService;
import org.springframework.security.core.userdetails.UsernameNotFoundException;
import org.springframework.security.web.SecurityFilterChain;
import org.springframework.security.web.util.matcher.RequestMatcher;

/** Basic authentication for all requests but those of tests. */
@Configuration
class Security {
    private static final RequestMatcher OF_TESTS =
            request -> request.getRequestURI().startsWith("/test/");

    /**
     * Not Spring's manager of users in memory: that one replaces the plain password by its bcrypt
     * hash at the first login, and each request would then compute such a hash.
     */
    @Bean
    UserDetailsService users(Settings settings) {
        return name -> {
            if (!settings.user().equals(name)) {
                throw new UsernameNotFoundException("there is no user " + name);
            }
            return User.withUsername(name)
                    .password("{noop}" + settings.password())
                    .roles("USER")
                    .build();
        };
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
