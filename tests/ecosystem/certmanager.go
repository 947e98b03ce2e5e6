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

// Of the last minor release whose programs are in one module with its library.
const certManagerVersion = "v1.11.5"

var certManager = subject{
	name: "cert-manager",
	software: []software{{
		name:   "cert-manager",
		module: "github.com/cert-manager/cert-manager@" + certManagerVersion,
		programs: []upstream.Program{
			{Name: "cert-manager-controller", Package: "./cmd/controller"},
			{Name: "cert-manager-webhook", Package: "./cmd/webhook"},
			{Name: "cert-manager-cainjector", Package: "./cmd/cainjector"},
			{Name: "cert-manager-ctl", Package: "./cmd/ctl"},
		},
		images: []image{
			certManagerImage("controller"), certManagerImage("webhook"), certManagerImage("cainjector"),
			certManagerImage("ctl"),
		},
	}},
	run: runCertManager,
}

func certManagerImage(part string) image {
	return image{ref: "quay.io/jetstack/cert-manager-" + part + ":" + certManagerVersion,
		program: "cert-manager-" + part, entrypoint: "/app/cmd/" + part + "/" + part, user: "1000"}
}

func runCertManager(r *rig) {
	installed := r.check("its chart is installed, and its own check passes", func() (string, error) {
		chart := filepath.Join(r.work, "cert-manager")
		if err := writeCertManagerChart(r.source("cert-manager"), chart); err != nil {
			return "", err
		}
		// A hook of the chart waits until the API with its webhook works.
		_, err := r.helm("install", "cert-manager", chart, "-n", "cert-manager", "--create-namespace",
			"--set", "installCRDs=true", "--wait", "--timeout=150s")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.state("cert-manager"))
		}
		return "", err
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

// writeCertManagerChart puts the chart together as upstream's release does:
// with its version, and the definitions of resources as a template.
func writeCertManagerChart(source, chart string) error {
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(source, "deploy", "charts", "cert-manager"))); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(chart, "Chart.template.yaml"))
	if err != nil {
		return err
	}
	var meta map[string]any
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return err
	}
	meta["version"], meta["appVersion"] = certManagerVersion, certManagerVersion
	delete(meta, "annotations")
	if text, err = yaml.Marshal(meta); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(chart, "Chart.yaml"), text, 0o644); err != nil {
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
