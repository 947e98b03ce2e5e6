package admission

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
)

// configurations are those of plugins, by name.
type configurations map[string][]byte

// of returns a plugin's, nil when it has none.
func (c configurations) of(name string) io.Reader {
	if data, ok := c[name]; ok {
		return bytes.NewReader(data)
	}
	return nil
}

// readConfigurations reads an AdmissionConfiguration. It is stricter than
// upstream's, which ignores plugins that it does not know: what somebody relies
// on must not be left out in silence.
func readConfigurations(file string, known []plugin) (configurations, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("admissionControlConfigFile: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("admissionControlConfigFile %s: %w", file, err)
	}
	config, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil,
			fmt.Errorf(
				"admissionControlConfigFile %s: it holds a %T, give an AdmissionConfiguration of apiserver.config.k8s.io/v1",
				file, obj)
	}
	out := configurations{}
	for _, p := range config.Plugins {
		i := slices.IndexFunc(known, func(k plugin) bool { return k.name == p.Name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("admissionControlConfigFile %s: plugin %q is unknown", file, p.Name)
		case !known[i].configurable:
			return nil, fmt.Errorf("admissionControlConfigFile %s: plugin %s takes no configuration", file, p.Name)
		case out[p.Name] != nil:
			return nil, fmt.Errorf("admissionControlConfigFile %s: plugin %s is configured twice", file, p.Name)
		}
		if out[p.Name], err = pluginData(p, filepath.Dir(file)); err != nil {
			return nil, fmt.Errorf("admissionControlConfigFile %s: plugin %s: %w", file, p.Name, err)
		}
	}
	return out, nil
}

// pluginData is what the file holds for a plugin, or the file beside it that it names.
func pluginData(p apiserver.AdmissionPluginConfiguration, dir string) ([]byte, error) {
	if p.Configuration != nil {
		return p.Configuration.Raw, nil
	}
	if p.Path == "" {
		return nil, fmt.Errorf("give configuration or path")
	}
	if !filepath.IsAbs(p.Path) {
		p.Path = filepath.Join(dir, p.Path)
	}
	return os.ReadFile(p.Path)
}
