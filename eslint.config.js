import js from "@eslint/js";
import globals from "globals";

const RULES = {
  complexity: ["error", 25],
  curly: ["error", "multi-line"],
  eqeqeq: "error",
  "max-len": ["error", {code: 120, ignoreStrings: true, ignoreTemplateLiterals: true}],
  "max-lines-per-function": ["error", {max: 65}],
  "max-params": ["error", 7],
  "no-implicit-globals": "error",
  "no-shadow": "error",
  "no-var": "error",
  "prefer-const": "error",
  // scripts.py joins modules by name and runs each once, so it has neither of these.
  "no-restricted-syntax": ["error",
    {selector: "ExportDefaultDeclaration", message: "scripts.py joins named exports only."},
    {selector: "ExportAllDeclaration", message: "scripts.py joins named exports only."},
    {selector: "ImportNamespaceSpecifier", message: "Import by name."},
    {selector: "CallExpression[callee.object.name='Object'][callee.property.name='assign']"
      + "[arguments.0.property.name='prototype']", message: "Compose parts instead."}],
};

export default [
  {ignores: ["**/graphviz_wasm/**", ".venv/**", "build/**", "dist/**"]},
  js.configs.recommended,
  {
    files: ["kit/**/js/**/*.js"],
    languageOptions: {sourceType: "module",
      globals: {...globals.browser, Bokeh: "readonly", unpacked: "readonly"}},
    rules: RULES,
  },
  {files: ["tests/js/**/*.js"], languageOptions: {sourceType: "module", globals: globals.node}, rules: RULES},
];
