package kind

// MetaRulesOf names the kinds that have rules.
func MetaRulesOf() (keys []string) {
	for key := range metaRulesOf {
		keys = append(keys, key)
	}
	return keys
}
