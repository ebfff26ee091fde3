package dev.jobwire.hints;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.List;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The security of a connection to RabbitMQ, from PEM files. */
final class BrokerTls {
    private static final String BEGIN = "-----BEGIN PRIVATE KEY-----";
    private static final String END = "-----END PRIVATE KEY-----";

    private BrokerTls() {}

    static SSLContext context(HintSettings settings) throws IOException, GeneralSecurityException {
        TrustManagerFactory trust =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(settings.tlsCa().isEmpty() ? null : authorities(settings.tlsCa().get()));
        KeyManagerFactory keys =
                KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        if (settings.tlsCertificate().isPresent() && settings.tlsKey().isPresent()) {
            keys.init(own(settings.tlsCertificate().get(), settings.tlsKey().get()), new char[0]);
        } else {
            keys.init(null, null);
        }
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    private static KeyStore authorities(Path file) throws IOException, GeneralSecurityException {
        KeyStore store = empty();
        int number = 0;
        for (Certificate authority : certificates(file)) {
            store.setCertificateEntry("authority" + number++, authority);
        }
        return store;
    }

    private static KeyStore own(Path certificate, Path key)
            throws IOException, GeneralSecurityException {
        KeyStore store = empty();
        Certificate[] chain = certificates(certificate).toArray(new Certificate[0]);
        store.setKeyEntry("own", key(key), new char[0], chain);
        return store;
    }

    private static KeyStore empty() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static List<Certificate> certificates(Path file)
            throws IOException, GeneralSecurityException {
        byte[] pem = Files.readAllBytes(file);
        List<Certificate> certificates = List.copyOf(CertificateFactory.getInstance("X.509")
                .generateCertificates(new ByteArrayInputStream(pem)));
        if (certificates.isEmpty()) {
            throw new GeneralSecurityException(file + " holds no certificate");
        }
        return certificates;
    }

    private static PrivateKey key(Path file) throws IOException, GeneralSecurityException {
        String pem = Files.readString(file, StandardCharsets.ISO_8859_1);
        int begin = pem.indexOf(BEGIN);
        int end = pem.indexOf(END);
        if (begin < 0 || end < begin) {
            throw new GeneralSecurityException(file + " holds no unencrypted key in PKCS 8; "
                    + "convert it with `openssl pkcs8 -topk8 -nocrypt`");
        }
        byte[] key = Base64.getMimeDecoder().decode(pem.substring(begin + BEGIN.length(), end));
        for (String algorithm : List.of("RSA", "EC", "EdDSA")) {
            try {
                return KeyFactory.getInstance(algorithm)
                        .generatePrivate(new PKCS8EncodedKeySpec(key));
            } catch (InvalidKeySpecException other) {
                // The key has another algorithm. Only the factory of its algorithm reads it.
                continue;
            }
        }
        throw new GeneralSecurityException(file + " holds a key that is neither RSA, EC nor EdDSA");
    }
}
