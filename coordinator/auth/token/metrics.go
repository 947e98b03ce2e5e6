package token

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

func counter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "serviceaccount", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
	})
}

// The uses of Secrets' tokens, under upstream's names.
var (
	legacyTokens        = counter("legacy_tokens_total", "Cumulative legacy service account tokens used")
	manualLegacyTokens  = counter("legacy_manual_token_uses_total", "Cumulative manually created legacy tokens used")
	invalidLegacyTokens = counter("invalid_legacy_auto_token_uses_total",
		"Cumulative invalid auto-generated legacy tokens used")
	generatedLegacyTokens = counter("legacy_auto_token_uses_total", "Cumulative auto-generated legacy tokens used")
)

// The uses of pods' tokens that are renewed in time, and of those that are not.
var (
	validTokens = counter("valid_tokens_total", "Cumulative valid projected service account tokens used")
	staleTokens = counter("stale_tokens_total", "Cumulative stale projected service account tokens used")
)

// registerLegacyMetrics has /metrics tell of them.
var registerLegacyMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(legacyTokens, manualLegacyTokens, invalidLegacyTokens, generatedLegacyTokens,
		validTokens, staleTokens)
})
