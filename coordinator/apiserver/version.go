package apiserver

import (
	"runtime"
	"runtime/debug"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
)

// The API level that /version tells. The linker may set gitVersion and gitCommit.
var (
	gitVersion = "v1.36.3"
	gitCommit  = ""
	buildDate  = "1970-01-01T00:00:00Z"
)

const major, minor = "1", "36"

// version is the library's effective version but for what /version shows.
type version struct {
	basecompatibility.EffectiveVersion
}

func effectiveVersion() basecompatibility.EffectiveVersion {
	return version{compatibility.DefaultBuildEffectiveVersion()}
}

// Info implements EffectiveVersion.
func (version) Info() *apiversion.Info {
	commit := gitCommit
	if build, ok := debug.ReadBuildInfo(); ok && commit == "" {
		for _, s := range build.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return &apiversion.Info{
		Major: major, Minor: minor, EmulationMajor: major, EmulationMinor: minor, MinCompatibilityMajor: major,
		MinCompatibilityMinor: "35",
		GitVersion:            gitVersion, GitCommit: commit, GitTreeState: "clean", BuildDate: buildDate,
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
