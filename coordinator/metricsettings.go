package main

import (
	"errors"
	"fmt"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/metrics"
	metricsv1 "k8s.io/component-base/metrics/api/v1"
	"k8s.io/component-base/version"

	"github.com/shoal-project/shoal/coordinator/config"
)

// checkMetrics tells what cannot be of the settings of metrics, field by field.
func checkMetrics(m config.Metrics) error {
	var errs []error
	if v := m.ShowHiddenMetricsForVersion; v != "" {
		// The library would ask the linker for the version, which a test program has not.
		current, err := utilversion.ParseMajorMinor(version.DefaultKubeBinaryVersion)
		if err != nil {
			return err
		}
		if only := current.SubtractMinor(1).String(); v != only {
			errs = append(errs, fmt.Errorf("showHiddenMetricsForVersion %q: give %s, or leave it out", v, only))
		}
	}
	for _, f := range []struct {
		field string
		metricsv1.MetricsConfiguration
	}{
		{"disabledMetrics", metricsv1.MetricsConfiguration{DisabledMetrics: m.DisabledMetrics}},
		{"allowMetricLabels", metricsv1.MetricsConfiguration{AllowListMapping: m.AllowMetricLabels}},
		{"allowMetricLabelsManifest", metricsv1.MetricsConfiguration{
			AllowListMappingManifest: m.AllowMetricLabelsManifest}},
	} {
		o := metrics.Options{MetricsConfiguration: f.MetricsConfiguration}
		if err := errors.Join(o.Validate()...); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.field, err))
		}
	}
	if len(m.AllowMetricLabels) > 0 && m.AllowMetricLabelsManifest != "" {
		errs = append(errs, errors.New("allowMetricLabelsManifest: give this or allowMetricLabels, not both"))
	}
	return errors.Join(errs...)
}

// applyMetrics has the process's metrics follow the settings. Those that are made later
// are not even counted when they are disabled; the page leaves out the others.
func applyMetrics(m config.Metrics) {
	if m.ShowHiddenMetricsForVersion != "" {
		metrics.SetShowHidden()
	}
	metrics.SetDisabledMetrics(m.DisabledMetrics)
	switch {
	case len(m.AllowMetricLabels) > 0:
		metrics.SetLabelAllowList(m.AllowMetricLabels)
	case m.AllowMetricLabelsManifest != "":
		metrics.SetLabelAllowListFromManifest(m.AllowMetricLabelsManifest)
	}
}
