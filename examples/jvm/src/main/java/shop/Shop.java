package shop;

import java.util.Arrays;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/** Places the orders whose numbers its arguments are. A negative one is rolled back. */
@SpringBootApplication
public class Shop {
    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments).close();
    }

    @Bean
    CommandLineRunner placeOrders(Orders orders) {
        return arguments ->
                Arrays.stream(arguments)
                        .filter(argument -> !argument.startsWith("--"))
                        .forEach(argument -> place(orders, Long.parseLong(argument)));
    }

    private static void place(Orders orders, long number) {
        try {
            System.out.println("order " + number + " is placed: " + orders.place(number));
        } catch (IllegalArgumentException refused) {
            System.out.println("order " + number + " is refused");
        }
    }
}
