package main

import (
	"maps"
	"testing"
	"time"
)

// Flags of every type override the file.
func TestFlags(t *testing.T) {
	cmd := command()
	if err := cmd.ParseFlags(
		[]string{"--oidc-required-claim", "a=b,c=d", "--anonymous-auth=false", "--audit-webhook-initial-backoff", "3s",
			"--disable-admission-plugins", "Priority,PodSecurity",
			"--runtime-config", "api/beta,batch/v1/jobs=false"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(cmd, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.OIDCRequiredClaim) != 2 || cfg.OIDCRequiredClaim["c"] != "d" ||
		cfg.AnonymousAuth == nil || *cfg.AnonymousAuth ||
		time.Duration(cfg.AuditWebhookInitialBackoff) != 3*time.Second || len(cfg.DisableAdmissionPlugins) != 2 ||
		!maps.Equal(cfg.RuntimeConfig, map[string]string{"api/beta": "", "batch/v1/jobs": "false"}) {
		t.Errorf("got %+v", cfg)
	}
}
