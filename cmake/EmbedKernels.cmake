# Writes every file under kernels/ as string literals into one C++ file, which defines tilewise::cuda::kernel_bundle()
# (src/cuda/jit/bundle.h). Run at build time:
#     cmake -DROOT=<repository> -DOUTPUT=<file.cpp> -P EmbedKernels.cmake
# NVRTC looks an include up by the very text between the quotes, so relative includes become paths from the repository's root;
# lines stay where they are, and NVRTC's messages name the files as the repository does. The literals are string_views (sv): clang
# gives up counting that many characters in a constant expression.
file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/kernels/*.h" "${ROOT}/kernels/*.cuh")
list(SORT files)

set(code "#include \"cuda/jit/bundle.h\"\n\nnamespace tilewise::cuda {\n\n")
string(APPEND code "std::span<const SourceFile> kernel_bundle() {\n  using std::string_view_literals::operator\"\"sv;\n")
string(APPEND code "  static constexpr SourceFile files[] = {\n")
foreach(name IN LISTS files)
  file(READ "${ROOT}/${name}" text)
  get_filename_component(folder "${name}" DIRECTORY)
  string(REPLACE "#include \"../" "#include \"kernels/" text "${text}")
  string(REGEX REPLACE "#include \"([^/\"]+)\"" "#include \"${folder}/\\1\"" text "${text}")
  string(APPEND code "      {\"${name}\", R\"TILEWISE(${text})TILEWISE\"sv},\n")
endforeach()
string(APPEND code "  };\n  return files;\n}\n\n}  // namespace tilewise::cuda\n")
file(WRITE "${OUTPUT}" "${code}")
