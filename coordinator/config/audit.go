package config

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// NoAuditLog as AuditLogPath keeps no log.
const NoAuditLog = "none"

// Audit says which requests are recorded and where. Names and meanings are those
// of upstream's flags; the log is on without any of them.
type Audit struct {
	// AuditPolicyFile is a Policy of audit.k8s.io/v1; empty: the built-in one.
	AuditPolicyFile string `json:"auditPolicyFile,omitempty"`

	// AuditLogPath is a file, "-" for standard output or "none"; empty:
	// audit/audit.log beside the other state.
	AuditLogPath string `json:"auditLogPath,omitempty"`
	// AuditLogFormat is json or legacy.
	AuditLogFormat string `json:"auditLogFormat,omitempty"`
	// AuditLogMaxSize are megabytes, AuditLogMaxAge days; 0 sets no limit.
	AuditLogMaxSize   int  `json:"auditLogMaxSize,omitempty"`
	AuditLogMaxBackup int  `json:"auditLogMaxBackup,omitempty"`
	AuditLogMaxAge    int  `json:"auditLogMaxAge,omitempty"`
	AuditLogCompress  bool `json:"auditLogCompress,omitempty"`
	// AuditLogMode is blocking, blocking-strict (no record, no request) or batch.
	AuditLogMode                 string   `json:"auditLogMode,omitempty"`
	AuditLogBatchBufferSize      int      `json:"auditLogBatchBufferSize,omitempty"`
	AuditLogBatchMaxSize         int      `json:"auditLogBatchMaxSize,omitempty"`
	AuditLogBatchMaxWait         Duration `json:"auditLogBatchMaxWait,omitempty"`
	AuditLogBatchThrottleEnable  bool     `json:"auditLogBatchThrottleEnable,omitempty"`
	AuditLogBatchThrottleQPS     float32  `json:"auditLogBatchThrottleQPS,omitempty"`
	AuditLogBatchThrottleBurst   int      `json:"auditLogBatchThrottleBurst,omitempty"`
	AuditLogTruncateEnabled      bool     `json:"auditLogTruncateEnabled,omitempty"`
	AuditLogTruncateMaxBatchSize int64    `json:"auditLogTruncateMaxBatchSize,omitempty"`
	AuditLogTruncateMaxEventSize int64    `json:"auditLogTruncateMaxEventSize,omitempty"`

	// AuditWebhookConfigFile is a kubeconfig of where events are sent; empty: nowhere.
	AuditWebhookConfigFile           string   `json:"auditWebhookConfigFile,omitempty"`
	AuditWebhookInitialBackoff       Duration `json:"auditWebhookInitialBackoff,omitempty"`
	AuditWebhookMode                 string   `json:"auditWebhookMode,omitempty"`
	AuditWebhookBatchBufferSize      int      `json:"auditWebhookBatchBufferSize,omitempty"`
	AuditWebhookBatchMaxSize         int      `json:"auditWebhookBatchMaxSize,omitempty"`
	AuditWebhookBatchMaxWait         Duration `json:"auditWebhookBatchMaxWait,omitempty"`
	AuditWebhookBatchThrottleEnable  bool     `json:"auditWebhookBatchThrottleEnable,omitempty"`
	AuditWebhookBatchThrottleQPS     float32  `json:"auditWebhookBatchThrottleQPS,omitempty"`
	AuditWebhookBatchThrottleBurst   int      `json:"auditWebhookBatchThrottleBurst,omitempty"`
	AuditWebhookTruncateEnabled      bool     `json:"auditWebhookTruncateEnabled,omitempty"`
	AuditWebhookTruncateMaxBatchSize int64    `json:"auditWebhookTruncateMaxBatchSize,omitempty"`
	AuditWebhookTruncateMaxEventSize int64    `json:"auditWebhookTruncateMaxEventSize,omitempty"`
}

// defaultAudit keeps as many logs as the CIS benchmark asks for (1.2.17 to
// 1.2.19); how events are batched and cut is upstream's.
func defaultAudit() Audit {
	const maxBatchSize, maxEventSize = 10 << 20, 100 << 10
	return Audit{
		AuditLogFormat:                   "json",
		AuditLogMaxSize:                  100,
		AuditLogMaxBackup:                10,
		AuditLogMaxAge:                   30,
		AuditLogCompress:                 true,
		AuditLogMode:                     "blocking",
		AuditLogBatchBufferSize:          10000,
		AuditLogBatchMaxSize:             1,
		AuditLogTruncateMaxBatchSize:     maxBatchSize,
		AuditLogTruncateMaxEventSize:     maxEventSize,
		AuditWebhookInitialBackoff:       Duration(10 * time.Second),
		AuditWebhookMode:                 "batch",
		AuditWebhookBatchBufferSize:      10000,
		AuditWebhookBatchMaxSize:         400,
		AuditWebhookBatchMaxWait:         Duration(30 * time.Second),
		AuditWebhookBatchThrottleEnable:  true,
		AuditWebhookBatchThrottleQPS:     10,
		AuditWebhookBatchThrottleBurst:   15,
		AuditWebhookTruncateMaxBatchSize: maxBatchSize,
		AuditWebhookTruncateMaxEventSize: maxEventSize,
	}
}

func (a *Audit) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.AuditPolicyFile, "audit-policy-file", a.AuditPolicyFile, "audit.k8s.io/v1 Policy: which requests are recorded (default: built in, metadata only)")
	fs.StringVar(&a.AuditLogPath, "audit-log-path", a.AuditLogPath, `audit log; "-": standard output, "none": no log (default DATA-DIR/coordinator/audit/audit.log)`)
	fs.StringVar(&a.AuditLogFormat, "audit-log-format", a.AuditLogFormat, "json or legacy")
	fs.IntVar(&a.AuditLogMaxSize, "audit-log-maxsize", a.AuditLogMaxSize, "megabytes at which the audit log is rotated; 0: never")
	fs.IntVar(&a.AuditLogMaxBackup, "audit-log-maxbackup", a.AuditLogMaxBackup, "rotated audit logs to keep; 0: all")
	fs.IntVar(&a.AuditLogMaxAge, "audit-log-maxage", a.AuditLogMaxAge, "days to keep rotated audit logs; 0: for ever")
	fs.BoolVar(&a.AuditLogCompress, "audit-log-compress", a.AuditLogCompress, "compress rotated audit logs")
	fs.StringVar(&a.AuditLogMode, "audit-log-mode", a.AuditLogMode, "blocking, blocking-strict (requests that cannot be recorded fail) or batch")
	fs.IntVar(&a.AuditLogBatchBufferSize, "audit-log-batch-buffer-size", a.AuditLogBatchBufferSize, "events that may wait to be written (mode batch)")
	fs.IntVar(&a.AuditLogBatchMaxSize, "audit-log-batch-max-size", a.AuditLogBatchMaxSize, "events in a batch (mode batch)")
	fs.Var(&a.AuditLogBatchMaxWait, "audit-log-batch-max-wait", "how long a batch waits to be filled (mode batch)")
	fs.BoolVar(&a.AuditLogBatchThrottleEnable, "audit-log-batch-throttle-enable", a.AuditLogBatchThrottleEnable, "limit the rate of batches (mode batch)")
	fs.Float32Var(&a.AuditLogBatchThrottleQPS, "audit-log-batch-throttle-qps", a.AuditLogBatchThrottleQPS, "batches a second (mode batch)")
	fs.IntVar(&a.AuditLogBatchThrottleBurst, "audit-log-batch-throttle-burst", a.AuditLogBatchThrottleBurst, "batches at once (mode batch)")
	fs.BoolVar(&a.AuditLogTruncateEnabled, "audit-log-truncate-enabled", a.AuditLogTruncateEnabled, "cut events and batches that are too long")
	fs.Int64Var(&a.AuditLogTruncateMaxBatchSize, "audit-log-truncate-max-batch-size", a.AuditLogTruncateMaxBatchSize, "bytes of a batch")
	fs.Int64Var(&a.AuditLogTruncateMaxEventSize, "audit-log-truncate-max-event-size", a.AuditLogTruncateMaxEventSize, "bytes of an event")

	fs.StringVar(&a.AuditWebhookConfigFile, "audit-webhook-config-file", a.AuditWebhookConfigFile, "kubeconfig of the service that audit events are sent to")
	fs.Var(&a.AuditWebhookInitialBackoff, "audit-webhook-initial-backoff", "wait before a failed request is sent again")
	fs.StringVar(&a.AuditWebhookMode, "audit-webhook-mode", a.AuditWebhookMode, "batch, blocking or blocking-strict")
	fs.IntVar(&a.AuditWebhookBatchBufferSize, "audit-webhook-batch-buffer-size", a.AuditWebhookBatchBufferSize, "events that may wait to be sent (mode batch)")
	fs.IntVar(&a.AuditWebhookBatchMaxSize, "audit-webhook-batch-max-size", a.AuditWebhookBatchMaxSize, "events in a batch (mode batch)")
	fs.Var(&a.AuditWebhookBatchMaxWait, "audit-webhook-batch-max-wait", "how long a batch waits to be filled (mode batch)")
	fs.BoolVar(&a.AuditWebhookBatchThrottleEnable,
		"audit-webhook-batch-throttle-enable", a.AuditWebhookBatchThrottleEnable, "limit the rate of batches (mode batch)")
	fs.Float32Var(&a.AuditWebhookBatchThrottleQPS, "audit-webhook-batch-throttle-qps", a.AuditWebhookBatchThrottleQPS, "batches a second (mode batch)")
	fs.IntVar(&a.AuditWebhookBatchThrottleBurst, "audit-webhook-batch-throttle-burst", a.AuditWebhookBatchThrottleBurst,
		"batches at once (mode batch)")
	fs.BoolVar(&a.AuditWebhookTruncateEnabled, "audit-webhook-truncate-enabled", a.AuditWebhookTruncateEnabled, "cut events and batches that are too long")
	fs.Int64Var(&a.AuditWebhookTruncateMaxBatchSize,
		"audit-webhook-truncate-max-batch-size", a.AuditWebhookTruncateMaxBatchSize, "bytes of a batch")
	fs.Int64Var(&a.AuditWebhookTruncateMaxEventSize,
		"audit-webhook-truncate-max-event-size", a.AuditWebhookTruncateMaxEventSize, "bytes of an event")
}

// validate tells what cannot be by bad(field, value, remedy).
func (a *Audit) validate(bad func(field, value, remedy string)) {
	if p := a.AuditLogPath; p != "" && p != "-" && p != NoAuditLog && !strings.HasPrefix(p, "/") {
		bad("auditLogPath", p, `give an absolute path, "-" for standard output or "none"`)
	}
	if a.AuditLogFormat != "json" && a.AuditLogFormat != "legacy" {
		bad("auditLogFormat", a.AuditLogFormat, "give json or legacy")
	}
	for field, mode := range map[string]string{"auditLogMode": a.AuditLogMode, "auditWebhookMode": a.AuditWebhookMode} {
		switch mode {
		case "batch", "blocking", "blocking-strict":
		default:
			bad(field, mode, "give batch, blocking or blocking-strict")
		}
	}
	notNegative := map[string]int{"auditLogMaxSize": a.AuditLogMaxSize, "auditLogMaxBackup": a.AuditLogMaxBackup,
		"auditLogMaxAge": a.AuditLogMaxAge}
	for field, n := range notNegative {
		if n < 0 {
			bad(field, itoa(n), "give 0 for no limit, or more")
		}
	}
	positive := map[string]int{
		"auditLogBatchBufferSize": a.AuditLogBatchBufferSize, "auditLogBatchMaxSize": a.AuditLogBatchMaxSize,
		"auditWebhookBatchBufferSize":      a.AuditWebhookBatchBufferSize,
		"auditWebhookBatchMaxSize":         a.AuditWebhookBatchMaxSize,
		"auditLogTruncateMaxEventSize":     int(a.AuditLogTruncateMaxEventSize),
		"auditWebhookTruncateMaxEventSize": int(a.AuditWebhookTruncateMaxEventSize),
		"auditWebhookInitialBackoff":       int(a.AuditWebhookInitialBackoff),
	}
	throttle := func(field string, on bool, qps float32, burst int) {
		if on {
			positive[field+"QPS"], positive[field+"Burst"] = int(qps*1000), burst
		}
	}
	throttle("auditLogBatchThrottle", a.AuditLogBatchThrottleEnable, a.AuditLogBatchThrottleQPS,
		a.AuditLogBatchThrottleBurst)
	throttle("auditWebhookBatchThrottle", a.AuditWebhookBatchThrottleEnable, a.AuditWebhookBatchThrottleQPS,
		a.AuditWebhookBatchThrottleBurst)
	for field, n := range positive {
		if n <= 0 {
			bad(field, itoa(n), "give more than 0")
		}
	}
	if a.AuditLogTruncateMaxBatchSize < a.AuditLogTruncateMaxEventSize {
		bad("auditLogTruncateMaxBatchSize", itoa(int(a.AuditLogTruncateMaxBatchSize)), "give no less than auditLogTruncateMaxEventSize")
	}
	if a.AuditWebhookTruncateMaxBatchSize < a.AuditWebhookTruncateMaxEventSize {
		bad("auditWebhookTruncateMaxBatchSize", itoa(int(a.AuditWebhookTruncateMaxBatchSize)), "give no less than auditWebhookTruncateMaxEventSize")
	}
}
