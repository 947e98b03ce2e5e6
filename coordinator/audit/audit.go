package audit

import (
	_ "embed"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	"k8s.io/apiserver/plugin/pkg/audit/webhook"

	"github.com/shoal-project/shoal/coordinator/config"
)

//go:embed policy.yaml
var defaultPolicy []byte

// Audit records what Rules say in Backend; both are nil when nothing is recorded.
type Audit struct {
	Backend audit.Backend
	Rules   audit.PolicyRuleEvaluator
}

// New opens what the configuration names; dir is where the log lies by default.
func New(c config.Audit, dir string, log *slog.Logger) (Audit, error) {
	rules, err := loadPolicy(c.AuditPolicyFile)
	if err != nil {
		return Audit{}, err
	}
	var backends []audit.Backend
	if c.AuditLogPath != config.NoAuditLog {
		b, err := newLog(c, dir, log)
		if err != nil {
			return Audit{}, err
		}
		backends = append(backends, b)
	}
	if c.AuditWebhookConfigFile != "" {
		b, err := newWebhook(c)
		if err != nil {
			return Audit{}, err
		}
		backends = append(backends, b)
	}
	if len(backends) == 0 {
		return Audit{}, nil
	}
	return Audit{Backend: bounded{audit.Union(backends...)}, Rules: rules}, nil
}

func loadPolicy(file string) (audit.PolicyRuleEvaluator, error) {
	if file == "" {
		p, err := policy.LoadPolicyFromBytes(defaultPolicy)
		if err != nil {
			return nil, fmt.Errorf("built-in audit policy: %w", err)
		}
		return policy.NewPolicyRuleEvaluator(p), nil
	}
	p, err := policy.LoadPolicyFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("auditPolicyFile %s: %w", file, err)
	}
	return policy.NewPolicyRuleEvaluator(p), nil
}

func newLog(c config.Audit, dir string, log *slog.Logger) (audit.Backend, error) {
	path := c.AuditLogPath
	if path == "" {
		path = filepath.Join(dir, "audit.log")
	}
	w, err := openLog(path, c)
	if err != nil {
		return nil, fmt.Errorf("auditLogPath: %w", err)
	}
	b := auditlog.NewBackend(&reporter{to: w, path: path, log: log}, c.AuditLogFormat, auditv1.SchemeGroupVersion)
	b = inMode(c.AuditLogMode, b, buffered.BatchConfig{
		BufferSize:     c.AuditLogBatchBufferSize,
		MaxBatchSize:   c.AuditLogBatchMaxSize,
		MaxBatchWait:   time.Duration(c.AuditLogBatchMaxWait),
		ThrottleEnable: c.AuditLogBatchThrottleEnable,
		ThrottleQPS:    c.AuditLogBatchThrottleQPS,
		ThrottleBurst:  c.AuditLogBatchThrottleBurst,
	})
	if c.AuditLogTruncateEnabled {
		b = truncate.NewBackend(b,
			truncate.Config{MaxEventSize: c.AuditLogTruncateMaxEventSize, MaxBatchSize: c.AuditLogTruncateMaxBatchSize},
			auditv1.SchemeGroupVersion)
	}
	return b, nil
}

func newWebhook(c config.Audit) (audit.Backend, error) {
	backoff := utilwebhook.DefaultRetryBackoffWithInitialDelay(time.Duration(c.AuditWebhookInitialBackoff))
	b, err := webhook.NewBackend(c.AuditWebhookConfigFile, auditv1.SchemeGroupVersion, backoff, nil)
	if err != nil {
		return nil, fmt.Errorf("auditWebhookConfigFile %s: %w", c.AuditWebhookConfigFile, err)
	}
	b = inMode(c.AuditWebhookMode, b, buffered.BatchConfig{
		BufferSize:     c.AuditWebhookBatchBufferSize,
		MaxBatchSize:   c.AuditWebhookBatchMaxSize,
		MaxBatchWait:   time.Duration(c.AuditWebhookBatchMaxWait),
		ThrottleEnable: c.AuditWebhookBatchThrottleEnable,
		ThrottleQPS:    c.AuditWebhookBatchThrottleQPS,
		ThrottleBurst:  c.AuditWebhookBatchThrottleBurst,
		AsyncDelegate:  true,
	})
	if c.AuditWebhookTruncateEnabled {
		b = truncate.NewBackend(b,
			truncate.Config{MaxEventSize: c.AuditWebhookTruncateMaxEventSize,
				MaxBatchSize: c.AuditWebhookTruncateMaxBatchSize}, auditv1.SchemeGroupVersion)
	}
	return b, nil
}
