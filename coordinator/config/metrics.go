package config

import "github.com/spf13/pflag"

// Metrics is what of the metrics is shown, in the words of flags that all of upstream's
// components have.
type Metrics struct {
	// ShowHiddenMetricsForVersion is the minor version before this one: metrics are shown
	// that it had, and which are hidden since. Empty: they are not.
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion,omitempty"`
	// DisabledMetrics are names of metrics that are not shown.
	DisabledMetrics []string `json:"disabledMetrics,omitempty"`
	// AllowMetricLabels are the values that a label has, separated by commas, by
	// METRIC,LABEL; others become "unexpected". AllowMetricLabelsManifest is a file of such.
	AllowMetricLabels         map[string]string `json:"allowMetricLabels,omitempty"`
	AllowMetricLabelsManifest string            `json:"allowMetricLabelsManifest,omitempty"`
}

func (m *Metrics) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&m.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", m.ShowHiddenMetricsForVersion,
		"the previous minor version, such as 1.35: show metrics that are hidden since")
	fs.StringSliceVar(&m.DisabledMetrics, "disabled-metrics", m.DisabledMetrics, "names of metrics that are not shown")
	fs.StringToStringVar(&m.AllowMetricLabels, "allow-metric-labels", m.AllowMetricLabels,
		"values that a label of a metric has, METRIC,LABEL=VALUE,...; others become unexpected")
	fs.StringVar(&m.AllowMetricLabelsManifest, "allow-metric-labels-manifest", m.AllowMetricLabelsManifest,
		"file of such values by METRIC,LABEL")
}
