package config

import "github.com/spf13/pflag"

// Admission says which admission plugins run and how they are configured. Names
// and meanings are those of upstream's flags.
type Admission struct {
	// EnableAdmissionPlugins run beside the default ones, DisableAdmissionPlugins
	// do not run although they are default.
	EnableAdmissionPlugins  []string `json:"enableAdmissionPlugins,omitempty"`
	DisableAdmissionPlugins []string `json:"disableAdmissionPlugins,omitempty"`
	// AdmissionControlConfigFile is an AdmissionConfiguration of apiserver.config.k8s.io/v1.
	AdmissionControlConfigFile string `json:"admissionControlConfigFile,omitempty"`
}

func (a *Admission) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.EnableAdmissionPlugins, "enable-admission-plugins", a.EnableAdmissionPlugins, "admission plugins to run beside the default ones")
	fs.StringSliceVar(&a.DisableAdmissionPlugins, "disable-admission-plugins", a.DisableAdmissionPlugins, "default admission plugins not to run")
	fs.StringVar(&a.AdmissionControlConfigFile, "admission-control-config-file", a.AdmissionControlConfigFile, "AdmissionConfiguration file: how single admission plugins are configured")
}
