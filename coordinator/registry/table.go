package registry

import (
	"slices"

	"github.com/shoal-project/shoal/coordinator/registry/admissionregistration"
	"github.com/shoal-project/shoal/coordinator/registry/apps"
	"github.com/shoal-project/shoal/coordinator/registry/authentication"
	"github.com/shoal-project/shoal/coordinator/registry/authorization"
	"github.com/shoal-project/shoal/coordinator/registry/autoscaling"
	"github.com/shoal-project/shoal/coordinator/registry/batch"
	"github.com/shoal-project/shoal/coordinator/registry/certificates"
	"github.com/shoal-project/shoal/coordinator/registry/coordination"
	"github.com/shoal-project/shoal/coordinator/registry/core"
	"github.com/shoal-project/shoal/coordinator/registry/discovery"
	"github.com/shoal-project/shoal/coordinator/registry/flowcontrol"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/metrics"
	"github.com/shoal-project/shoal/coordinator/registry/networking"
	"github.com/shoal-project/shoal/coordinator/registry/node"
	"github.com/shoal-project/shoal/coordinator/registry/policy"
	"github.com/shoal-project/shoal/coordinator/registry/rbac"
	"github.com/shoal-project/shoal/coordinator/registry/resource"
	"github.com/shoal-project/shoal/coordinator/registry/scheduling"
	"github.com/shoal-project/shoal/coordinator/registry/storage"
)

// Kinds returns every built-in kind, group by group.
func Kinds() []kind.Kind {
	return slices.Concat(
		core.Kinds(),
		admissionregistration.Kinds(),
		apps.Kinds(),
		authentication.Kinds(),
		authorization.Kinds(),
		autoscaling.Kinds(),
		batch.Kinds(),
		certificates.Kinds(),
		coordination.Kinds(),
		discovery.Kinds(),
		flowcontrol.Kinds(),
		metrics.Kinds(),
		node.Kinds(),
		networking.Kinds(),
		policy.Kinds(),
		rbac.Kinds(),
		resource.Kinds(),
		scheduling.Kinds(),
		storage.Kinds(),
	)
}
