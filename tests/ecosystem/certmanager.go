package main

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/tests/upstream"
)

const (
	// certManagerVersion is of the last minor release whose programs are in one module
	// with its library.
	certManagerVersion = "v1.11.5"
	// certManagerArchive is of one whose programs are modules that the proxy lacks.
	certManagerArchive = "cert-manager-v1.21.1"
)

var certManager = subject{
	name: "cert-manager",
	software: []software{certManagerSoftware(software{
		name: "cert-manager", module: "github.com/cert-manager/cert-manager@" + certManagerVersion,
	}, certManagerVersion, "cert-manager-", "ctl")},
	archived: []software{certManagerSoftware(software{
		name: certManagerArchive, archive: certManagerArchive,
		replaced: []string{"github.com/Venafi/vcert/v5=vcert-v5.13.7"},
	}, certManagerArchive[len("cert-manager-"):], certManagerArchive+"-", "startupapicheck")},
	run: runCertManager,
}

// certManagerSoftware adds to s the programs of a release, whose names in the cache
// begin with prefix. check is the one that the chart starts to see that all works.
func certManagerSoftware(s software, version, prefix, check string) software {
	for _, part := range []string{"controller", "webhook", "cainjector", check} {
		s.programs = append(s.programs, upstream.Program{Name: prefix + part, Package: "./cmd/" + part,
			LDFlags: "-X github.com/cert-manager/cert-manager/pkg/util.AppVersion=" + version})
		s.images = append(s.images, image{ref: "quay.io/jetstack/cert-manager-" + part + ":" + version,
			program: prefix + part, entrypoint: "/app/cmd/" + part + "/" + part, user: "1000"})
	}
	return s
}

func runCertManager(r *rig) {
	installed := r.check("its chart is installed, and its own check passes", func() (string, error) {
		chart := filepath.Join(r.work, "cert-manager")
		release := r.software[0]
		_, version, _ := strings.Cut(release.images[0].ref, ":")
		if err := writeCertManagerChart(r.source(release.name), chart, version); err != nil {
			return "", err
		}
		// A hook of the chart waits until the API with its webhook works.
		_, err := r.helm("install", "cert-manager", chart, "-n", "cert-manager", "--create-namespace",
			"--set", "installCRDs=true", "--wait", "--timeout=150s")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.state("cert-manager"))
		}
		return version, err
	})
	if !installed {
		return
	}
	r.check("its webhook refuses a Certificate without an issuer", func() (string, error) {
		const bad = "apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: bad}\n" +
			"spec: {secretName: bad, dnsNames: [a.example], duration: 1m, issuerRef: {name: none}}\n"
		_, err := r.Kubectl(bad, "apply", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "webhook.cert-manager.io") {
			return "", fmt.Errorf("not refused by the webhook: %w", err)
		}
		return "", nil
	})
	r.check("a self-signed authority issues a server's certificate", func() (string, error) {
		if err := r.apply("certificates.yaml"); err != nil {
			return "", err
		}
		_, err := r.do("wait --for=condition=Ready certificate --all --timeout=90s")()
		if err != nil {
			out, _ := r.Kubectl("", "describe", "certificates,certificaterequests,issuers")
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		return r.verifiedCertificate("server-tls", "shop.example")
	})
	r.check("a certificate whose Secret is deleted is issued anew", func() (string, error) {
		return r.do("delete secret server-tls", "wait --for=create secret/server-tls --timeout=60s")()
	})
}

// writeCertManagerChart puts the chart together as upstream's release does: with its
// version and, where these are no templates of it yet, the definitions of resources.
func writeCertManagerChart(source, chart, version string) error {
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(source, "deploy", "charts", "cert-manager"))); err != nil {
		return err
	}
	file := filepath.Join(chart, "Chart.template.yaml") // of older releases
	if !upstream.Have(file) {
		file = filepath.Join(chart, "Chart.yaml")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var meta map[string]any
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return err
	}
	meta["version"], meta["appVersion"] = version, version
	delete(meta, "annotations")
	if text, err = yaml.Marshal(meta); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(chart, "Chart.yaml"), text, 0o644); err != nil {
		return err
	}
	if in, err := filepath.Glob(filepath.Join(chart, "templates", "crd-*.yaml")); err != nil || len(in) > 0 {
		return err
	}
	files, err := filepath.Glob(filepath.Join(source, "deploy", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no definitions in %s/deploy/crds: %w", source, err)
	}
	crds := "{{- if .Values.installCRDs }}\n"
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		crds += "---\n" + string(text)
	}
	return os.WriteFile(filepath.Join(chart, "templates", "crds.yaml"), []byte(crds+"{{- end }}\n"), 0o644)
}

// verifiedCertificate reads a TLS Secret and verifies the certificate with the
// authority beside it.
func (r *rig) verifiedCertificate(secret, host string) (string, error) {
	out, err := r.Kubectl("", "get", "secret", secret, "-o", `jsonpath={.data.tls\.crt} {.data.ca\.crt}`)
	if err != nil {
		return "", err
	}
	certs := make([]*x509.Certificate, 0, 2)
	for _, f := range strings.Fields(out) {
		text, err := base64.StdEncoding.DecodeString(f)
		if err != nil {
			return "", err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return "", errors.New("no PEM block")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", err
		}
		certs = append(certs, c)
	}
	if len(certs) != 2 {
		return "", fmt.Errorf("%d certificates in the Secret", len(certs))
	}
	roots := x509.NewCertPool()
	roots.AddCert(certs[1])
	_, err = certs[0].Verify(x509.VerifyOptions{DNSName: host, Roots: roots})
	return "by " + certs[0].Issuer.CommonName, err
}

// helm runs helm on the first machine.
func (r *rig) helm(args ...string) (string, error) {
	cmd := r.Command("helm", append([]string{"--kubeconfig", r.Kubeconfig()}, args...)...)
	dir := filepath.Join(r.work, "helm")
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}
