//! The partition of a hint: the one that a Java producer chooses for the same key.
//!
//! The hash is MurmurHash2 with the seed of Kafka's default partitioner
//! (org.apache.kafka.common.utils.Utils.murmur2), so producers in other languages agree.

/// Returns the partition of a key, from 0 to `partitions - 1`.
pub(crate) fn partition(key: &[u8], partitions: i32) -> i32 {
    let positive = murmur2(key) & 0x7fff_ffff;
    let partitions = partitions.max(1).cast_unsigned();
    (positive % partitions).cast_signed()
}

fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    #[allow(clippy::cast_possible_truncation, reason = "as the original does")]
    let mut hash = SEED ^ (data.len() as u32);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = word
            .iter()
            .rev()
            .fold(0_u32, |k, byte| (k << 8) | u32::from(*byte));
        k = k.wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let k = rest
            .iter()
            .rev()
            .fold(0_u32, |k, byte| (k << 8) | u32::from(*byte));
        hash = (hash ^ k).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the Java client's own unit test (`UtilsTest.testMurmur2`).
    #[test]
    fn the_hash_is_the_java_clients() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
    }

    /// The vectors of docs/reference/hint-vectors.json, for implementations in other languages.
    #[test]
    fn keys_go_to_the_partitions_that_the_vectors_say() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/hint-vectors.json"
        );
        let vectors: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let vectors = vectors["partitions"].as_array().unwrap();
        assert!(vectors.len() >= 14);
        for vector in vectors {
            let key = vector["key"].as_str().unwrap();
            let hash = i64::from(murmur2(key.as_bytes()).cast_signed());
            assert_eq!(vector["murmur2"], hash, "{key}");
            for partitions in [1, 3, 12] {
                let expected = &vector["partition"][partitions.to_string()];
                let at = partition(key.as_bytes(), partitions);
                assert_eq!(*expected, at, "{key} of {partitions}");
            }
        }
    }

    #[test]
    fn every_partition_is_used_and_none_beyond() {
        let mut seen = [false; 12];
        for n in 0..1_000 {
            let at = partition(format!("order-{n}").as_bytes(), 12);
            seen[usize::try_from(at).unwrap()] = true;
        }
        assert_eq!(seen, [true; 12]);
        assert_eq!(partition(b"anything", 1), 0);
    }
}
