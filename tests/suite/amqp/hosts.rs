//! Several hosts in one URL: the transport uses one that answers, and another when that one stops.

use jobwire_core::Lane;
use jobwire_core::transport::Publisher;
use jobwire_tests::rabbitmqctl::User;
use jobwire_tests::{Proxy, RabbitMq, eventually, port};
use url::Url;

use super::vhost::*;

/// Returns the URL with these hosts in place of its own.
fn at(url: &str, hosts: &[String]) -> String {
    let url = Url::parse(url).unwrap();
    let user = url.username();
    let password = url.password().unwrap();
    format!("amqp://{user}:{password}@{}{}", hosts.join(","), url.path())
}

fn nobody() -> String {
    format!("127.0.0.1:{}", port::free())
}

#[tokio::test]
async fn hosts_that_are_away_are_passed_over() {
    let vhost = VirtualHost::new().await;
    let broker = Url::parse(&vhost.space.url).unwrap();
    let living = format!("localhost:{}", broker.port().unwrap());
    let url = at(&vhost.space.url, &[nobody(), nobody(), living]);
    // The order is random: the living host may come first.
    for _ in 0..5 {
        let transport = connect(&url, vhost.options()).await;
        let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
        soon("closing", jobwire_core::Transport::close(&transport, SOON)).await;
    }
}

#[tokio::test]
async fn all_hosts_are_named_when_none_answers() {
    let hosts = [nobody(), nobody()];
    let url = format!("amqp://bob:hunter2@{}/jobs", hosts.join(","));
    let transport = begin(&url, options("jobwire")).await;
    let problem = eventually("both to have been tried", SOON, || async {
        let problem = Publisher::health(&transport).problem?;
        hosts
            .iter()
            .all(|host| problem.contains(host))
            .then_some(problem)
    })
    .await;
    assert!(!problem.contains("hunter2"), "{problem}");
    assert!(!format!("{transport:?}").contains("hunter2"));
}

/// Two proxies lead to one broker. When one closes, the connections move to the other, and back.
#[tokio::test]
async fn the_next_host_is_taken_when_one_is_lost() {
    let vhost = VirtualHost::new().await;
    let broker = Url::parse(&vhost.space.url).unwrap();
    let broker = format!("127.0.0.1:{}", broker.port().unwrap());
    let roads = [Proxy::start(&broker).await, Proxy::start(&broker).await];
    let hosts: Vec<String> = roads
        .iter()
        .map(|road| road.address().to_string())
        .collect();
    let transport = connect(&at(&vhost.space.url, &hosts), vhost.options()).await;
    let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
    for closed in [0, 1, 0] {
        let (closed, open) = (&roads[closed], &roads[1 - closed]);
        open.accept().await;
        closed.refuse().await;
        closed.cut();
        eventually("both connections to take the other road", SOON, || async {
            (closed.connections() == 0 && open.connections() >= 2).then_some(())
        })
        .await;
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
    }
}

/// The brokers share no state: hints on the first are lost, which the protocol allows.
#[tokio::test]
async fn another_broker_takes_over_from_one_that_stops() {
    let (one, other) = tokio::join!(RabbitMq::start(), RabbitMq::start());
    for broker in [&one, &other] {
        let bob = User {
            name: "bob",
            password: "hunter2",
            vhost: "/",
            configure: ".*",
            write: ".*",
            read: ".*",
        };
        broker.ctl().add_user(&bob).await;
    }
    let hosts = [one.address(), other.address()].join(",");
    let url = format!("amqp://bob:hunter2@{hosts}/");
    let transport = connect(&url, options("jobwire")).await;
    let lane = Lane::default();
    let mut receiver = subscribe(&transport, &lane, 10).await.unwrap();
    let (mut used, spare) = if connections(&one).await > 0 {
        (one, other)
    } else {
        (other, one)
    };
    used.stop().await;
    eventually("both connections to the other broker", SOON, || async {
        (connections(&spare).await == 2).then_some(())
    })
    .await;
    let id = publish_at_last(&transport, &lane).await;
    arrives(&mut receiver, id).await;
}

/// Counts the connections of the user `bob`.
async fn connections(broker: &RabbitMq) -> usize {
    let users = broker.ctl().run(&["list_connections", "user"]).await;
    users.lines().filter(|user| *user == "bob").count()
}
