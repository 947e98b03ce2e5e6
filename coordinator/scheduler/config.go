package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/extender"
	"github.com/shoal-project/shoal/coordinator/scheduler/plugins"
)

// settings is a configuration in the form that New works with.
type settings struct {
	profiles                   []profileSpec
	initialBackoff, maxBackoff time.Duration
	extenders                  []*extender.Extender
}

// readConfig takes the configuration from the Config. Fields that tell of
// upstream's process (leader election, clients, metrics, parallelism) are
// accepted and have no effect here: the coordinator has its own.
func readConfig(c Config) (*settings, error) {
	k := c.Configuration
	if k == nil && c.ConfigFile != "" {
		data, err := os.ReadFile(c.ConfigFile)
		if err != nil {
			return nil, err
		}
		if k, err = decodeConfig(data); err != nil {
			return nil, fmt.Errorf("%s: %w", c.ConfigFile, err)
		}
	}
	if k == nil {
		k = &configv1.KubeSchedulerConfiguration{}
	}
	return readProfiles(k)
}

// decodeConfig reads YAML or JSON strictly.
func decodeConfig(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	s := runtime.NewScheme()
	if err := configv1.AddToScheme(s); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(s, serializer.EnableStrict)
	obj, _, err := codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	k, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("want kind KubeSchedulerConfiguration, got %T", obj)
	}
	return k, nil
}

func readProfiles(k *configv1.KubeSchedulerConfiguration) (*settings, error) {
	out := &settings{initialBackoff: seconds(k.PodInitialBackoffSeconds, 1),
		maxBackoff: seconds(k.PodMaxBackoffSeconds, 10)}
	if out.initialBackoff <= 0 {
		return nil, errors.New("podInitialBackoffSeconds: Invalid value: must be greater than 0")
	}
	if out.maxBackoff < out.initialBackoff {
		return nil, errors.New("podMaxBackoffSeconds: Invalid value: must be greater than or equal to PodInitialBackoffSeconds")
	}
	var ignored []string
	var err error
	if out.extenders, ignored, err = extender.New(k.Extenders); err != nil {
		return nil, err
	}
	if err := checkPercentage("percentageOfNodesToScore", k.PercentageOfNodesToScore); err != nil {
		return nil, err
	}
	profiles := k.Profiles
	if len(profiles) == 0 {
		profiles = []configv1.KubeSchedulerProfile{{}}
	}
	seen := map[string]bool{}
	for i := range profiles {
		p := &profiles[i]
		spec, err := readProfile(p, len(profiles) == 1)
		if err != nil {
			return nil, fmt.Errorf("profiles[%d]%w", i, err)
		}
		if err := spec.ignore(ignored); err != nil {
			return nil, fmt.Errorf("profiles[%d].pluginConfig: %w", i, err)
		}
		if seen[spec.name] {
			return nil, fmt.Errorf("profiles[%d].schedulerName: Duplicate value: %q", i, spec.name)
		}
		seen[spec.name] = true
		if spec.percentage == 0 && k.PercentageOfNodesToScore != nil {
			spec.percentage = *k.PercentageOfNodesToScore
		}
		out.profiles = append(out.profiles, spec)
	}
	return out, nil
}

// readProfile's errors begin with the path below the profile.
func readProfile(p *configv1.KubeSchedulerProfile, alone bool) (profileSpec, error) {
	spec := profileSpec{name: corev1.DefaultSchedulerName, args: map[string][]byte{}}
	switch {
	case p.SchedulerName != nil && *p.SchedulerName != "":
		spec.name = *p.SchedulerName
	case !alone:
		return spec, errors.New(".schedulerName: Required value")
	}
	if err := checkPercentage(".percentageOfNodesToScore", p.PercentageOfNodesToScore); err != nil {
		return spec, err
	}
	if p.PercentageOfNodesToScore != nil {
		spec.percentage = *p.PercentageOfNodesToScore
	}
	for i, pc := range p.PluginConfig {
		if plugins.Registry[pc.Name] == nil {
			return spec, fmt.Errorf(".pluginConfig[%d].name: plugin %q does not exist; known are %v", i,
				pc.Name, plugins.Names())
		}
		if spec.args[pc.Name] != nil {
			return spec, fmt.Errorf(".pluginConfig[%d]: Duplicate value: %q", i, pc.Name)
		}
		args, err := rawArgs(pc.Args)
		if err != nil {
			return spec, fmt.Errorf(".pluginConfig[%d].args: %w", i, err)
		}
		spec.args[pc.Name] = args
	}
	if p.Plugins == nil {
		return spec, nil
	}
	var err error
	spec.points, err = mergePoints(p.Plugins)
	return spec, err
}

// ignore has NodeResourcesFit leave resources out that an extender counts.
func (s *profileSpec) ignore(resources []string) error {
	if len(resources) == 0 {
		return nil
	}
	args := map[string]any{}
	if have := s.args[plugins.NodeResourcesFitName]; len(have) > 0 {
		if err := json.Unmarshal(have, &args); err != nil {
			return err
		}
	}
	list, _ := args["ignoredResources"].([]any)
	for _, r := range resources {
		list = append(list, r)
	}
	args["ignoredResources"] = list
	data, err := json.Marshal(args)
	s.args[plugins.NodeResourcesFitName] = data
	return err
}

func checkPercentage(path string, v *int32) error {
	if v != nil && (*v < 0 || *v > 100) {
		return fmt.Errorf("%s: Invalid value: %d: not in valid range [0-100]", path, *v)
	}
	return nil
}

// mergePoints works out which plugins run at each point: those named for the
// point itself, then those of multiPoint, in the order of the defaults, without the disabled ones.
func mergePoints(in *configv1.Plugins) (map[string][]configured, error) {
	multi, err := multiPoint(&in.MultiPoint)
	if err != nil {
		return nil, err
	}
	sets := map[string]*configv1.PluginSet{
		pointPreEnqueue: &in.PreEnqueue, pointQueueSort: &in.QueueSort,
		pointPreFilter: &in.PreFilter, pointFilter: &in.Filter,
		pointPostFilter: &in.PostFilter, pointPreScore: &in.PreScore, pointScore: &in.Score, pointReserve: &in.Reserve,
		pointPermit: &in.Permit, pointPreBind: &in.PreBind, pointBind: &in.Bind, pointPostBind: &in.PostBind,
	}
	out := map[string][]configured{}
	for _, point := range points {
		set := sets[point]
		all, off, err := disabled(point, set)
		if err != nil {
			return nil, err
		}
		own := map[string]bool{}
		var list []configured
		for _, e := range set.Enabled {
			if plugins.Registry[e.Name] == nil {
				return nil, unknown("."+point+".enabled", e.Name)
			}
			own[e.Name] = true
			list = append(list, configured{e.Name, weightOf(e), true})
		}
		for _, m := range multi {
			if !all && !off[m.name] && !own[m.name] {
				list = append(list, m)
			}
		}
		out[point] = list
	}
	return out, nil
}

// multiPoint merges the defaults with the set: a default that is enabled again
// keeps its place and takes the weight.
func multiPoint(set *configv1.PluginSet) ([]configured, error) {
	all, off, err := disabled("multiPoint", set)
	if err != nil {
		return nil, err
	}
	var out []configured
	replaced := map[string]bool{}
	for _, d := range plugins.Defaults {
		if all || off[d.Name] {
			continue
		}
		c := configured{name: d.Name, weight: d.Weight}
		for _, e := range set.Enabled {
			if e.Name == d.Name {
				replaced[e.Name] = true
				if w := weightOf(e); w != 0 {
					c.weight = w
				}
			}
		}
		out = append(out, c)
	}
	for _, e := range set.Enabled {
		if plugins.Registry[e.Name] == nil {
			return nil, unknown(".multiPoint.enabled", e.Name)
		}
		if !replaced[e.Name] {
			out = append(out, configured{name: e.Name, weight: weightOf(e)})
		}
	}
	return out, nil
}

func disabled(point string, set *configv1.PluginSet) (all bool, off map[string]bool, err error) {
	off = map[string]bool{}
	for _, d := range set.Disabled {
		switch {
		case d.Name == "*":
			all = true
		case plugins.Registry[d.Name] == nil && !slices.Contains(notYet, d.Name):
			return false, nil, unknown("."+point+".disabled", d.Name)
		default:
			off[d.Name] = true
		}
	}
	return all, off, nil
}

// notYet are upstream's plugins that are not written yet; to disable them is no error.
var notYet = []string{"GangScheduling"}

func unknown(path, name string) error {
	return fmt.Errorf(".plugins%s: plugin %q does not exist; known are %s", path, name, strings.Join(plugins.Names(), ", "))
}

func weightOf(p configv1.Plugin) int64 {
	if p.Weight == nil {
		return 0
	}
	return int64(*p.Weight)
}

func rawArgs(e runtime.RawExtension) ([]byte, error) {
	if e.Object == nil {
		return e.Raw, nil
	}
	return json.Marshal(e.Object)
}

func seconds(v *int64, def int64) time.Duration {
	if v == nil {
		return time.Duration(def) * time.Second
	}
	return time.Duration(*v) * time.Second
}
