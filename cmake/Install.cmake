# What `cmake --install` puts where: the library (shared and static), its headers, the tool, and the files by which CMake
# (find_package(tilewise), target tilewise::tilewise or tilewise::static) and pkg-config find them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set_target_properties(tilewise PROPERTIES EXPORT_NAME tilewise)
set_target_properties(tilewise_static PROPERTIES EXPORT_NAME static)
add_library(tilewise::tilewise ALIAS tilewise)
add_library(tilewise::static ALIAS tilewise_static)

install(TARGETS tilewise tilewise_static EXPORT tilewise-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/tilewise/tilewise.h include/tilewise/tilewise.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tilewise)
if(TARGET tilewise_cli)
  install(TARGETS tilewise_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
install(EXPORT tilewise-targets NAMESPACE tilewise:: DESTINATION ${package})
configure_package_config_file(cmake/tilewise-config.cmake.in ${PROJECT_BINARY_DIR}/tilewise-config.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tilewise-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tilewise-config.cmake ${PROJECT_BINARY_DIR}/tilewise-config-version.cmake
        DESTINATION ${package})

file(RELATIVE_PATH TILEWISE_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/tilewise.pc.in ${PROJECT_BINARY_DIR}/tilewise.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tilewise.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
