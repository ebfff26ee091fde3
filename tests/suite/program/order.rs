//! `jobwire order`.

use jobwire_tests::Scratch;

use super::home::{Base, Home};
use super::{fails, jobwire, succeeds};

pub(super) async fn the_order_is_relaxed_until_it_is_made_strict<S: Base>(home: &Home<S>) {
    for (arguments, said) in [
        (&["order"][..], "relaxed"),
        (&["order", "strict"], "strict"),
        (&["order"], "strict"),
        (&["order", "relaxed"], "relaxed"),
    ] {
        let printed = succeeds(jobwire(home, arguments)).await;
        assert_eq!(printed.trim(), said, "{arguments:?}");
    }
}

#[tokio::test]
async fn an_order_that_does_not_exist_is_refused() {
    let home = Scratch::new();
    let said = fails(jobwire(&home, &["order", "loose"]), 2).await;
    assert!(
        said.contains("strict") && said.contains("relaxed"),
        "{said}"
    );
}
